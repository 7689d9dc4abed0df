"""Simulated rounds, by which `commonweal.checks` tests rules."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from commonweal.data.population import Setting
from commonweal.rules.rule import Reports, required

WIDTH = 8  # parameters of the model


def sample_setting(clients: int) -> Setting:
    """A setting in which everything is known. Groups have equal sizes and different labels."""
    groups = 2 if clients % 2 == 0 else 1
    client = torch.arange(clients)
    counts = torch.zeros(clients, 3, dtype=torch.int64)
    counts[client, client % groups] = 10
    counts[:, 2] = client // groups
    names = tuple(f"group {i % groups}" for i in range(clients))
    return Setting(clients=clients, groups=names, label_counts=counts)


def sample_reports(seed: int, size: int, clients: int) -> Reports:
    """An ordinary round: losses between 0.1 and 3, and updates that partly agree."""
    generator = torch.Generator().manual_seed(seed)
    losses = 0.1 + 2.9 * torch.rand(size, generator=generator)
    updates = torch.randn(size, WIDTH, generator=generator) + 0.5
    return Reports(
        ids=torch.randperm(clients, generator=generator)[:size],
        sizes=torch.randint(1, 200, (size,), generator=generator),
        losses=losses,
        clients=clients,
        scores=torch.rand(size, generator=generator),
        updates=updates,
        losses_after=0.8 * losses,
    )


def sample_rounds(seed: int, clients: int, count: int = 4) -> Iterator[Reports]:
    """Rounds with cohorts of different sizes."""
    for t in range(count):
        yield sample_reports(1000 * (seed + 1) + t, 1 + (seed + t) % clients, clients)


def equal_reports(clients: int) -> Reports:
    """A round in which all clients report the same."""
    return _repeated(sample_reports(0, clients, clients), torch.zeros(clients, dtype=torch.int64))


def twin_reports(seed: int, clients: int) -> Reports:
    """A round in which client 2 reports what client 0 does. They are of the same group."""
    position = torch.arange(clients)
    position[2] = 0
    return _repeated(sample_reports(seed, clients, clients), position)


def _repeated(reports: Reports, position: Tensor) -> Reports:
    """A round in which client i reports what is at `position[i]`."""
    columns = {name: value[position] for name, value in reports.tensors.items()}
    columns["ids"] = torch.arange(len(position))
    return Reports(clients=reports.clients, checked=True, **columns)


def late_reports(seed: int, clients: int) -> Reports:
    """A round after two clients have joined."""
    return sample_reports(seed, clients + 2, clients + 2)


def extreme_reports(clients: int, seed: int) -> dict[str, Reports]:
    """Rounds at the limits of what clients can report."""
    usual = sample_reports(seed, clients, clients)
    first = torch.arange(clients) == 0
    zeros = torch.zeros(clients)
    return {
        **extreme_losses(usual, first),
        **extreme_updates(usual, first[:, None]),
        "scores of zero": replace(usual, scores=zeros),
        "scores of one": replace(usual, scores=zeros + 1),
        "an undefined score": replace(usual, scores=zeros.masked_fill(first, torch.nan)),
        "1e9 samples next to 1": replace(usual, sizes=torch.where(first, 10**9, 1)),
    }


def extreme_losses(usual: Reports, first: Tensor) -> dict[str, Reports]:
    losses = usual.losses
    ones = torch.ones_like(losses)
    return {
        "equal losses": replace(usual, losses=ones, losses_after=ones),
        "zero losses": replace(usual, losses=0 * ones, losses_after=0 * ones),
        "one zero loss": replace(usual, losses=losses.masked_fill(first, 0.0)),
        "one loss of 1e4": replace(usual, losses=losses.masked_fill(first, 1e4)),
        "losses of 1e-30": replace(usual, losses=1e-30 * losses, losses_after=1e-30 * losses),
    }


def extreme_updates(usual: Reports, first: Tensor) -> dict[str, Reports]:
    updates = required(usual.updates, "updates")
    ones = torch.ones_like(updates)
    signs = 1 - 2 * (torch.arange(len(updates)) % 2)
    return {
        "zero updates": replace(usual, updates=0 * ones),
        "one zero update": replace(usual, updates=updates * ~first),
        "one update times 1e4": replace(usual, updates=updates * (1 + 1e4 * first)),
        "equal updates": replace(usual, updates=ones),
        "opposite updates": replace(usual, updates=ones * signs[:, None]),
        "more clients than parameters": replace(usual, updates=updates[:, :2]),
    }
