"""Documents that people write: Markdown, Word, PDF."""
