"""Fills templates: HTML pages that load nothing, and Markdown."""

from collections.abc import Callable, Mapping
from pathlib import Path


def render_template(
    folder: Path, template: str, filters: Mapping[str, Callable] | None = None, **values: object
) -> str:
    """Fills a template of ``folder``. Values are escaped in HTML; a name without a value is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(folder),
        autoescape=template.endswith(".html"),
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    environment.filters |= filters or {}
    return environment.get_template(template).render(**values)
