"""All checks in order: first what needs nothing but rank 0's store, then what needs the ranks connected, then steps."""

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
from .exchange import Exchange, open_exchange
from .facts import Facts, collect_facts
from .finding import Finding
from .table import format_check, format_hosts, format_title, format_verdict

CONNECTING = 180.0  # seconds in which all ranks connect with one another
TRYING = 900.0  # seconds for links and steps together: loading a model from the hub, or compiling, takes minutes
TICKS = 3  # times at which clocks are compared
IN_THE_WAY_OF_CONNECTING = {"versions", "devices", "descriptors", "network"}
IN_THE_WAY_OF_STEPS = {"settings", "disk", "corpus", *IN_THE_WAY_OF_CONNECTING}


@dataclass
class Report:
    """What rank 0 gathers and prints; it stays empty on the others.

    made:       the checks that were made
    columns:    more of each host than its facts, by heading and host
    all_reduce: MB/s; None where it was not measured
    """

    facts: list[Facts] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    made: list[str] = field(default_factory=list)
    columns: dict[str, dict[str, str]] = field(default_factory=dict)
    all_reduce: float | None = None

    @property
    def hosts(self) -> dict[int, str]:
        return {one.rank: one.host for one in self.facts}

    def add(self, check: str, note: str, findings: list[Finding]) -> None:
        """Prints what a check saw and found, at once: a later one may end the process."""
        self.made.append(check)
        self.findings += findings
        print(format_check(check, note, findings), flush=True)

    def allows(self, in_the_way: set[str]) -> bool:
        """Whether none of these checks has failed."""
        return not any(finding.fatal and finding.check in in_the_way for finding in self.findings)


def preflight(config: PretrainConfig) -> bool:
    """Checks whether the run of these settings would do well on these hosts, prints what was found on rank 0, and
    returns whether it may start, the same on all ranks. All ranks call it; it leaves nothing in the output folder.

    Raises KinspanError where the ranks do not find one another, or the settings cannot be meant.
    """
    check(config)
    report, exchange = Report(), open_exchange()
    try:
        hosts = _look_at_hosts(exchange, config, report)
        _compare_clocks(exchange, report)
        _look_at_corpora(exchange, config, report, hosts)
        if exchange.meet("reach", _reach(exchange, report, hosts), lambda values: _judge_reach(report, values)):
            _try_together(exchange, config, report, hosts)
        if exchange.rank == 0:
            print(f"\n{format_hosts(report.facts, report.findings, report.columns)}\n", flush=True)
            print(format_verdict(report.findings, report.made), flush=True)
        ready = exchange.meet("verdict", None, lambda values: not any(finding.fatal for finding in report.findings))
    finally:
        exchange.leave()
    return ready


def _look_at_hosts(exchange: Exchange, config: PretrainConfig, report: Report) -> dict[str, int]:
    """What each rank knows by itself. Returns the hosts, with the first rank of each."""

    def judge(values: list[Any]) -> dict[str, int]:
        report.facts = facts = [Facts(**value["facts"]) for value in values]
        print(format_title(facts), flush=True)
        first = facts[0].versions
        noted = ", ".join(f"{name} {first.get(name)}" for name in ("torch", "deepspeed", "transformers"))
        report.add("versions", f"{noted} and {len(first) - 3} more", checks.check_versions(facts))
        report.add("settings", f"{len(facts[0].settings)} of them", checks.check_settings(facts))
        report.add("devices", f"{len(facts)} of them: {facts[0].device}", checks.check_devices(facts))
        refused = {one.host: value["refused"] for one, value in zip(facts, values, strict=True) if value["refused"]}
        found = [Finding("disk", [host], text) for host, text in refused.items()]
        found += checks.check_disks(facts) + checks.check_room_for_cache(config, facts)
        report.add("disk", "", found)
        report.add("descriptors", "", checks.check_descriptors(facts))
        if twins := checks.check_names(facts):
            report.add("network", "every host has a name of its own", twins)
        firsts = {host: one.rank for host, one in checks.first_of_each_host(facts).items()}
        report.made += ["network"] if len(firsts) == 1 else []  # there is nothing to look at
        report.made += ["bandwidth"] if len(facts) == 1 else []
        return firsts

    refused = None
    absent = _list_absent(Path(config.output_dir))
    try:
        open_folder(config.output_dir)
    except KinspanError as error:
        refused = str(error)
    _remove_empty(absent)
    own = {"facts": collect_facts(config).as_dict(), "refused": refused}
    return exchange.meet("facts", own, judge)


def _compare_clocks(exchange: Exchange, report: Report) -> None:
    """All read their clocks when rank 0's word comes, several times. What delays the word adds to the difference, so
    that the smallest one counts."""
    times = []
    for number in range(TICKS):
        exchange.meet(f"tick {number}", None, lambda values: None)
        times.append(time.time())

    def judge(values: list[list[float]]) -> None:
        offsets: dict[str, float] = {}
        for rank, own in enumerate(values):
            differences = [there - here for there, here in zip(own, values[0], strict=True)]
            offsets.setdefault(report.hosts[rank], min(differences, key=abs))
        widest = max(map(abs, offsets.values()))
        report.add("clock", f"within {max(widest, 0.1):.1f} s", checks.check_clocks(offsets))
        if len(offsets) > 1:
            report.columns["clock"] = {host: f"{offset:+.1f} s" for host, offset in offsets.items()}

    exchange.meet("clock", times, judge)


def _look_at_corpora(exchange: Exchange, config: PretrainConfig, report: Report, hosts: dict[str, int]) -> None:
    is_first = exchange.rank in hosts.values()

    def judge(values: list[Any]) -> None:
        found = corpora.check_corpora(report.facts, values)
        report.add("corpus", corpora.describe_corpora(report.facts, values), found)

    exchange.meet("corpus", corpora.look_at_corpora(config) if is_first else None, judge)


def _reach(exchange: Exchange, report: Report, hosts: dict[str, int]) -> list[str] | None:
    """The hosts that this one does not reach; None where there are no others, or another rank of the host looks."""
    if len(hosts) == 1:
        return None
    is_first = exchange.rank in hosts.values()
    listener = network.Listener() if is_first else None

    def judge(values: list[Any]) -> dict[str, Any]:
        addresses = {host: values[rank] for host, rank in hosts.items()}
        report.columns["address"] = {host: address for host, (address, _) in addresses.items()}
        return addresses

    own = (network.find_address(), listener.port) if listener else None
    others = exchange.meet("addresses", own, judge)
    unreached = network.try_to_reach({host: tuple(place) for host, place in others.items()}) if listener else None
    exchange.meet("reached", None, lambda values: None)  # nobody stops listening before all have asked
    if listener:
        listener.close()
    return unreached


def _judge_reach(report: Report, values: list[Any]) -> bool:
    """Notes what was not reached, and returns whether the ranks can connect."""
    unreached = {report.hosts[rank]: missed for rank, missed in enumerate(values) if missed is not None}
    if unreached:
        found = network.check_reach(report.columns["address"], unreached)
        report.add("network", f"{len(unreached)} hosts, each from each", found)
    return report.allows(IN_THE_WAY_OF_CONNECTING)


def _try_together(exchange: Exchange, config: PretrainConfig, report: Report, hosts: dict[str, int]) -> None:
    """Connects the ranks, measures their links, and trains for some steps."""
    with limit_time(CONNECTING, "the ranks did not connect with one another: look at the network between the hosts"):
        start_distributed()
    rank, local_rank, world = read_launcher_variables()
    device = torch.device("cuda", local_rank) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    folder = Path(config.output_dir) / exchange.meet(
        "folder", None, lambda values: f"{SHARED}preflight-{secrets.token_hex(4)}"
    )
    absent = _list_absent(folder)
    try:
        with (
            limit_time(TRYING, "links and steps took too long: see where the other ranks are"),
            watch_ranks(folder, rank, world, config.stall_minutes * 60) as watch,
        ):
            try:
                if world > 1:
                    watch.mark("measuring the links", patient=True)
                    _measure_links(exchange, report, hosts, device)
                if exchange.meet("go on", None, lambda values: report.allows(IN_THE_WAY_OF_STEPS)):
                    _try_steps(exchange, config, report, folder, watch)
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


def _measure_links(exchange: Exchange, report: Report, hosts: dict[str, int], device: torch.device) -> None:
    all_reduce = network.measure_all_reduce(device)
    received = network.measure_links(exchange.rank, list(hosts.values()), device)

    def judge(values: list[dict[str, float]]) -> None:
        report.all_reduce = all_reduce
        rates = network.name_rates(report.hosts, values)
        slowest = f"; slowest link {network.show_rate(min(rates.values()))}" if rates else ""
        report.add("bandwidth", f"all-reduce {network.show_rate(all_reduce)}{slowest}", network.check_links(rates))
        if rates:
            own = {host: [rate for link, rate in rates.items() if link[1] == host] for host in hosts}
            report.columns["receives"] = {host: network.show_rate(max(values)) for host, values in own.items()}

    exchange.meet("links", received, judge)


def _try_steps(exchange: Exchange, config: PretrainConfig, report: Report, folder: Path, watch: Watch) -> None:
    from . import steps  # what takes seconds to import comes after what is found without it

    try:
        own = steps.try_steps(config, folder / "run", watch)  # beside the watch's heartbeat: no run begins with that
    except KinspanError as error:
        print(f"{exchange.host}: {error}", file=sys.stderr, flush=True)  # where the others wait in vain, it is told
        own = {"error": str(error)}
    exchange.meet("steps", own, lambda values: _judge_steps(report, values, config))


def _judge_steps(report: Report, values: list[Any], config: PretrainConfig) -> None:
    from . import steps

    found = steps.check_steps(values, report.hosts, report.all_reduce)
    if any("error" in value for value in values):
        report.add("steps", "", found)
        return
    seconds = max(value["seconds"] for value in values)
    first = values[0]
    whole = format_time(first["steps"] * seconds)
    note = f"{seconds:.3g} s each, {first['tokens'] / seconds:,.0f} tokens/s; {first['steps']:,} take {whole}"
    written = len(list((Path(config.output_dir) / CHECKPOINTS).glob("step-*")))
    kept = first["steps"] // config.keep_every if config.keep_every else 0
    keep = max(config.keep_checkpoints + kept - written, 0)
    found += checks.check_room_for_checkpoints(report.facts, first["parameters"], keep, steps.BYTES_PER_PARAMETER)
    report.add("steps", note, found)
    slowest: dict[str, float] = {}
    for rank, value in enumerate(values):
        host = report.hosts[rank]
        slowest[host] = min(slowest.get(host, value["tflops"]), value["tflops"])
    middle = statistics.median(slowest.values())
    report.add("speed", f"{middle:.3g} TFLOP/s of matrix products", checks.check_speeds(slowest))
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
