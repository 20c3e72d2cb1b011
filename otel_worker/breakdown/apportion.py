"""Integers shared out by weight, without losing one."""

from collections.abc import Mapping


def apportion(length: int, weights: Mapping[str, float]) -> dict[str, int]:
    """Split `length` by weight; the parts sum to it exactly. Without weights there is nothing to give it to: {}."""
    shared: dict[str, int] = {}
    weight_left = sum(weights.values())
    for name, weight in weights.items():
        shared[name] = min(length, round(length * weight / weight_left)) if weight_left > 0 else 0
        length -= shared[name]
        weight_left -= weight
    if length and shared:
        shared[max(weights, key=weights.__getitem__)] += length
    return {name: part for name, part in shared.items() if part}


def add(sums: dict[str, int], more: Mapping[str, int]) -> None:
    for name, part in more.items():
        sums[name] = sums.get(name, 0) + part
