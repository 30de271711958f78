"""All checks in order: first what needs nothing but rank 0's store, then what needs the ranks connected, then steps.

Every rank gathers what all have found and judges it alike; rank 0 prints.
"""

import os
import secrets
import shutil
import socket
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch.distributed as dist

from data_pipeline.core.errors import KinspanError
from pretrain.config import PretrainConfig
from pretrain.engine import ranks
from pretrain.engine.engine import start_distributed
from pretrain.engine.log import format_time
from pretrain.engine.run_folder import CHECKPOINTS, SHARED
from pretrain.engine.watch import Watch, watch_ranks
from pretrain.planning.checks import check

from . import checks, network
from .corpora import check_corpora, look_at_corpora
from .facts import Facts, collect_facts
from .report import CHECKS, Finding, Report, format_verdict, list_hosts
from .store import RankStore, open_store

CONNECTING = 180.0  # seconds in which all ranks connect with one another
TRYING = 900.0  # seconds for links and steps together: loading a model from the hub, or compiling, takes minutes
TICKS = 3  # times at which clocks are compared
IN_THE_WAY_OF_CONNECTING = {"versions", "devices", "descriptors", "network"}
IN_THE_WAY_OF_STEPS = {"settings", "disk", "corpus", *IN_THE_WAY_OF_CONNECTING}


def preflight(config: PretrainConfig) -> bool:
    """Checks whether the run of these settings would do well on these hosts, prints what was found on rank 0, and
    returns whether it may start, the same on all ranks. All ranks call it; it leaves nothing in the output folder.

    Raises KinspanError where the ranks do not find one another, or the settings cannot be meant.
    """
    check(config)
    output = Path(config.output_dir)
    absent = [path for path in (output, *output.parents) if not path.exists()]
    store = open_store()
    try:
        facts = [Facts(**values) for values in store.gather("facts", asdict(collect_facts(config)))]
        report = Report(store.rank, facts)
        _look_at_hosts(report)
        _compare_clocks(store, report)
        _look_at_corpora(store, config, report)
        _reach(store, report)
        if report.allows(IN_THE_WAY_OF_CONNECTING):
            _try_together(store, config, report)
        report.say(f"\n{format_verdict(report)}")
    finally:
        for folder in absent:
            with suppress(OSError):  # another rank has something in it, and comes after
                folder.rmdir()
        store.leave()
    return report.allows(CHECKS)


def _look_at_hosts(report: Report) -> None:
    facts, hosts = report.facts, report.hosts
    report.say(f"preflight of {len(facts)} rank(s) on {len(hosts)} host(s): {list_hosts(list(hosts))}")
    versions, settings = facts[0].alike["versions"], facts[0].alike["settings"]
    noted = ", ".join(f"{name} {versions.get(name)}" for name in ("torch", "deepspeed", "transformers"))
    report.add("versions", checks.check_alike("versions", hosts), f"{noted} and {len(versions) - 3} more")
    report.add("settings", checks.check_alike("settings", hosts), f"{len(settings)} of them")
    report.add("devices", checks.check_devices(facts), f"{len(facts)} of them: {facts[0].device}")
    report.add("disk", checks.check_disks(hosts))
    report.add("descriptors", checks.check_descriptors(hosts, len(facts)))


def _compare_clocks(store: RankStore, report: Report) -> None:
    """All read their clocks when the last one has come, several times; the smallest difference counts."""
    times = []
    for number in range(TICKS):
        store.gather(f"tick {number}")
        times.append(time.time())
    values = store.gather("clock", times)
    offsets = {}
    for host, one in report.hosts.items():
        differences = [there - here for there, here in zip(values[one.rank], values[0], strict=True)]
        offsets[host] = min(differences, key=abs)
    report.add("clock", checks.check_clocks(offsets), f"within {max(0.1, *map(abs, offsets.values())):.1f} s")


def _look_at_corpora(store: RankStore, config: PretrainConfig, report: Report) -> None:
    values = store.gather("corpus", look_at_corpora(config) if report.is_first else None)
    seen = {host: values[one.rank] for host, one in report.hosts.items()}
    names = list_hosts(list(values[0])) or "the default one, which each host makes for itself"
    report.add("corpus", check_corpora(seen), f"{names} on {len(seen)} host(s)")


def _reach(store: RankStore, report: Report) -> None:
    """Whether each host has a name of its own, and reaches each other one."""
    with socket.create_server(("", 0), backlog=1024) as listener:  # the system answers for it
        places = store.gather("addresses", (network.find_address(), listener.getsockname()[1]))
        others = {host: tuple(places[one.rank]) for host, one in report.hosts.items()}
        asks = report.is_first and len(others) > 1
        missed = store.gather("reached", network.try_to_reach(others) if asks else [])
    addresses = {host: address for host, (address, _) in others.items()}
    unreached = {host: missed[one.rank] for host, one in report.hosts.items()}
    found = checks.check_names(report.facts) + network.check_reach(addresses, unreached)
    report.add("network", found, f"{len(others)} host(s), each from each")


def _try_together(store: RankStore, config: PretrainConfig, report: Report) -> None:
    with limit_time(CONNECTING, "the ranks did not connect with one another: look at the network between the hosts"):
        start_distributed(config.allow_cpu)
    folder = Path(config.output_dir) / f"{SHARED}preflight-{store.gather('folder', secrets.token_hex(4))[0]}"
    try:
        with (
            limit_time(TRYING, "links and steps took too long: see where the other ranks are"),
            watch_ranks(folder, store.rank, store.world, config.stall_minutes * 60) as watch,
        ):
            try:
                watch.mark("measuring the links", patient=True)
                _measure_links(store, report)
                if report.allows(IN_THE_WAY_OF_STEPS):
                    _try_steps(store, config, report, folder, watch)
            except RuntimeError as error:
                if not ranks.is_communication_failure(error):
                    raise
                text = ranks.describe_communication_failure(error)
                watch.wait_for_verdict(text)
                raise KinspanError(text) from error
    finally:
        if store.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)


def _measure_links(store: RankStore, report: Report) -> None:
    firsts = {one.rank: host for host, one in report.hosts.items()}
    received = store.gather("links", network.measure_links(store.rank, list(firsts)))
    rates = {(firsts[int(s)], firsts[r]): rate for r in firsts for s, rate in received[r].items()}
    note = f"slowest link {network.show_rate(min(rates.values()))}" if rates else "one host, no link"
    report.add("bandwidth", network.check_links(rates) if rates else [], note)


def _try_steps(store: RankStore, config: PretrainConfig, report: Report, folder: Path, watch: Watch) -> None:
    from . import steps  # what takes seconds to import comes after what is found without it

    own: dict[str, Any]
    try:
        own = steps.try_steps(config, folder / "run", watch)  # beside the watch's heartbeat: no run begins with that
        own["written"] = len(list((Path(config.output_dir) / CHECKPOINTS).glob("step-*")))
    except KinspanError as error:
        print(f"{store.host}: {error}", file=sys.stderr, flush=True)  # where the others wait in vain, it is told
        own = {"error": str(error)}
    values = store.gather("steps", own)
    refused: dict[str, list[str]] = {}
    for one, value in zip(report.facts, values, strict=True):
        if "error" in value:
            refused.setdefault(value["error"], []).append(one.host)
    if refused:
        report.add("steps", [Finding("steps", sorted(set(hosts)), text) for text, hosts in refused.items()])
        return
    seconds, first = max(value["seconds"] for value in values), values[0]
    whole = format_time(first["steps"] * seconds)
    note = f"{seconds:.3g} s each, {first['tokens'] / seconds:,.0f} tokens/s; {first['steps']:,} take {whole}"
    keep = config.keep_checkpoints + (first["steps"] // config.keep_every if config.keep_every else 0)
    keep = max(keep + (config.lr_schedule == "wsd") - first["written"], 0)  # of wsd, that before the decay
    each = first["parameters"] * steps.BYTES_PER_PARAMETER
    report.add("steps", checks.check_room_for_checkpoints(report.hosts, keep, each), note)
    slowest: dict[str, float] = {}
    for one, value in zip(report.facts, values, strict=True):
        slowest[one.host] = min(value["tflops"], slowest.get(one.host, value["tflops"]))
    usual = statistics.median(slowest.values())
    report.add("speed", checks.check_speeds(slowest), f"{usual:.3g} TFLOP/s of matrix products")


@contextmanager
def limit_time(seconds: float, text: str) -> Iterator[None]:
    """Ends this process with status 2 and a line where the block takes longer: no collective waits by itself."""

    def end() -> None:
        os.write(2, f"[rank {os.environ['RANK']}] error: after {seconds:.0f} s: {text}\n".encode())
        os._exit(2)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


def leave_group() -> None:
    """Leaves the process group, where one was made."""
    if dist.is_initialized():
        dist.destroy_process_group()
