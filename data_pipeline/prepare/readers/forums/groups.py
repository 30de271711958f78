"""Which questions are kept together: all that declared duplicates connect, whatever the direction of the links."""

from collections.abc import Iterable, Mapping


def name_groups(links: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Name the group of each linked question, by one of its members: chains, siblings and circles are one group each.

    A group is named by a member that is a duplicate of nothing, which most have one of, or else by any; by the first in
    the order of characters where there are several.

    links: for a question what it is a duplicate of
    """
    leader: dict[str, str] = {}

    def find(member: str) -> str:
        while leader.setdefault(member, member) != member:
            leader[member] = leader[leader[member]]  # halves the path for the next one
            member = leader[member]
        return member

    for source, targets in links.items():
        for target in targets:
            leader[find(source)] = find(target)
    names: dict[str, str] = {}
    for member in sorted(leader, key=lambda member: (bool(links.get(member)), member)):
        names.setdefault(find(member), member)
    return {member: names[find(member)] for member in leader}
