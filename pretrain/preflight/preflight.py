"""All checks in order: first what needs nothing but rank 0's store, then what needs the ranks connected, then steps.

Every rank gathers what all have found and judges it alike; rank 0 prints.
"""

import os
import secrets
import shutil
import statistics
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from data_pipeline.errors import KinspanError
from pretrain.config import PretrainConfig
from pretrain.planning.checks import check
from pretrain.runtime import ranks
from pretrain.runtime.engine import start_distributed
from pretrain.runtime.log import format_time
from pretrain.runtime.run_folder import CHECKPOINTS, SHARED, open_folder
from pretrain.runtime.watch import Watch, watch_ranks
from pretrain.runtime.world import read_launcher_variables

from . import checks, corpora, network
from .facts import Facts, collect_facts, first_of_each_host
from .report import Finding, format_check, format_hosts, format_title, format_verdict
from .store import RankStore, open_store

CONNECTING = 180.0  # seconds in which all ranks connect with one another
TRYING = 900.0  # seconds for links and steps together: loading a model from the hub, or compiling, takes minutes
TICKS = 3  # times at which clocks are compared
IN_THE_WAY_OF_CONNECTING = {"versions", "devices", "descriptors", "network"}
IN_THE_WAY_OF_STEPS = {"settings", "disk", "corpus", *IN_THE_WAY_OF_CONNECTING}


@dataclass
class Report:
    """What was found, the same on all ranks; rank 0 prints it.

    made:       the checks that were made
    columns:    more of each host than its facts, by heading and host
    all_reduce: MB/s; None where it was not measured
    """

    prints: bool
    facts: list[Facts] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    columns: dict[str, dict[str, str]] = field(default_factory=dict)
    all_reduce: float | None = None

    @property
    def hosts(self) -> dict[int, str]:
        return {one.rank: one.host for one in self.facts}

    @property
    def firsts(self) -> dict[str, int]:
        """The hosts, with the first rank of each."""
        return {host: one.rank for host, one in first_of_each_host(self.facts).items()}

    def say(self, text: str) -> None:
        if self.prints:
            print(text, flush=True)

    def add(self, check: str, note: str, findings: list[Finding]) -> None:
        """Prints what a check saw and found, at once: a later one may end the process."""
        self.made.append(check)
        self.findings += findings
        self.say(format_check(check, note, findings))

    def allows(self, in_the_way: set[str] | None = None) -> bool:
        """Whether none of these checks, or of all, has failed."""
        return not any(found.fatal and (in_the_way is None or found.check in in_the_way) for found in self.findings)


def preflight(config: PretrainConfig) -> bool:
    """Checks whether the run of these settings would do well on these hosts, prints what was found on rank 0, and
    returns whether it may start, the same on all ranks. All ranks call it; it leaves nothing in the output folder.

    Raises KinspanError where the ranks do not find one another, or the settings cannot be meant.
    """
    check(config)
    store = open_store()
    report = Report(prints=store.rank == 0)
    try:
        _look_at_hosts(store, config, report)
        _compare_clocks(store, report)
        is_first = store.rank in report.firsts.values()
        seen = store.gather("corpus", corpora.look_at_corpora(config) if is_first else None)
        found = corpora.check_corpora(report.facts, seen)
        report.add("corpus", corpora.describe_corpora(report.facts, seen), found)
        if len(report.firsts) > 1:
            _reach(store, report, is_first)
        if report.allows(IN_THE_WAY_OF_CONNECTING):
            _try_together(store, config, report)
        report.say(f"\n{format_hosts(report.facts, report.findings, report.columns)}\n")
        report.say(format_verdict(report.findings, report.made))
    finally:
        store.leave()
    return report.allows()


def _look_at_hosts(store: RankStore, config: PretrainConfig, report: Report) -> None:
    """What each rank knows by itself."""
    refused = None
    absent = _list_absent(Path(config.output_dir))
    try:
        open_folder(config.output_dir)
    except KinspanError as error:
        refused = str(error)
    _remove_empty(absent)
    values = store.gather("facts", {"facts": collect_facts(config).as_dict(), "refused": refused})
    report.facts = facts = [Facts(**value["facts"]) for value in values]
    report.say(format_title(facts))
    first = facts[0].versions
    noted = ", ".join(f"{name} {first.get(name)}" for name in ("torch", "deepspeed", "transformers"))
    report.add("versions", f"{noted} and {len(first) - 3} more", checks.check_versions(facts))
    report.add("settings", f"{len(facts[0].settings)} of them", checks.check_settings(facts))
    report.add("devices", f"{len(facts)} of them: {facts[0].device}", checks.check_devices(facts))
    of_host = {one.host: value["refused"] for one, value in zip(facts, values, strict=True) if value["refused"]}
    found = [Finding("disk", [host], text) for host, text in of_host.items()]
    report.add("disk", "", found + checks.check_disks(facts) + checks.check_room_for_cache(config, facts))
    report.add("descriptors", "", checks.check_descriptors(facts))
    if twins := checks.check_names(facts):
        report.add("network", "every host has a name of its own", twins)
    report.made += ["network"] if len(report.firsts) == 1 else []  # there is nothing to look at
    report.made += ["bandwidth"] if len(facts) == 1 else []


def _compare_clocks(store: RankStore, report: Report) -> None:
    """All read their clocks when the last one has come, several times. What delays the word adds to the difference, so
    that the smallest one counts."""
    times = []
    for number in range(TICKS):
        store.gather(f"tick {number}")
        times.append(time.time())
    values = store.gather("clock", times)
    offsets: dict[str, float] = {}
    for rank, own in enumerate(values):
        differences = [there - here for there, here in zip(own, values[0], strict=True)]
        offsets.setdefault(report.hosts[rank], min(differences, key=abs))
    widest = max(map(abs, offsets.values()))
    report.add("clock", f"within {max(widest, 0.1):.1f} s", checks.check_clocks(offsets))
    if len(offsets) > 1:
        report.columns["clock"] = {host: f"{offset:+.1f} s" for host, offset in offsets.items()}


def _reach(store: RankStore, report: Report, is_first: bool) -> None:
    """Whether each host reaches each other one."""
    listener = network.Listener() if is_first else None
    places = store.gather("addresses", (network.find_address(), listener.port) if listener else None)
    others = {host: tuple(places[rank]) for host, rank in report.firsts.items()}
    values = store.gather("reached", network.try_to_reach(others) if listener else None)
    if listener:
        listener.close()  # all have asked
    report.columns["address"] = {host: address for host, (address, _) in others.items()}
    unreached = {report.hosts[rank]: missed for rank, missed in enumerate(values) if missed is not None}
    found = network.check_reach(report.columns["address"], unreached)
    report.add("network", f"{len(unreached)} hosts, each from each", found)


def _try_together(store: RankStore, config: PretrainConfig, report: Report) -> None:
    """Connects the ranks, measures their links, and trains for some steps."""
    with limit_time(CONNECTING, "the ranks did not connect with one another: look at the network between the hosts"):
        start_distributed(config.allow_cpu)
    rank, local_rank, world = read_launcher_variables()
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    folder = Path(config.output_dir) / f"{SHARED}preflight-{store.gather('folder', secrets.token_hex(4))[0]}"
    absent = _list_absent(folder)
    try:
        with (
            limit_time(TRYING, "links and steps took too long: see where the other ranks are"),
            watch_ranks(folder, rank, world, config.stall_minutes * 60) as watch,
        ):
            try:
                if world > 1:
                    watch.mark("measuring the links", patient=True)
                    _measure_links(store, report, device)
                if report.allows(IN_THE_WAY_OF_STEPS):
                    _try_steps(store, config, report, folder, watch)
            except RuntimeError as error:
                if not ranks.is_communication_failure(error):
                    raise
                text = ranks.describe_communication_failure(error)
                watch.wait_for_verdict(text)
                raise KinspanError(text) from error
    finally:
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            _remove_empty(absent)


def _measure_links(store: RankStore, report: Report, device: torch.device) -> None:
    report.all_reduce = rate = network.measure_all_reduce(device)
    received = network.measure_links(store.rank, list(report.firsts.values()), device)
    rates = network.name_rates(report.hosts, store.gather("links", received))
    slowest = f"; slowest link {network.show_rate(min(rates.values()))}" if rates else ""
    report.add("bandwidth", f"all-reduce {network.show_rate(rate)}{slowest}", network.check_links(rates))
    if rates:
        own = {host: [rate for link, rate in rates.items() if link[1] == host] for host in report.firsts}
        report.columns["receives"] = {host: network.show_rate(max(values)) for host, values in own.items()}


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
    found = steps.check_steps(values, report.hosts, report.all_reduce)
    if any("error" in value for value in values):
        report.add("steps", "", found)
        return
    seconds, first = max(value["seconds"] for value in values), values[0]
    whole = format_time(first["steps"] * seconds)
    note = f"{seconds:.3g} s each, {first['tokens'] / seconds:,.0f} tokens/s; {first['steps']:,} take {whole}"
    kept = first["steps"] // config.keep_every if config.keep_every else 0
    kept += config.lr_schedule == "wsd"  # that before the decay
    keep = max(config.keep_checkpoints + kept - first["written"], 0)
    found += checks.check_room_for_checkpoints(report.facts, first["parameters"], keep, steps.BYTES_PER_PARAMETER)
    report.add("steps", note, found)
    slowest = {
        host: min(v["tflops"] for r, v in enumerate(values) if report.hosts[r] == host) for host in report.firsts
    }
    usual = statistics.median(slowest.values())
    report.add("speed", f"{usual:.3g} TFLOP/s of matrix products", checks.check_speeds(slowest))
    report.columns["TFLOP/s"] = {host: f"{own:.3g}" for host, own in slowest.items()}


def _list_absent(folder: Path) -> list[Path]:
    """The folder and those above it that are not there yet, from the innermost."""
    return [path for path in (folder, *folder.parents) if not path.exists()]


def _remove_empty(folders: list[Path]) -> None:
    """Leaves the output folder as it was. Where another rank has something in it, that one comes after."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


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
