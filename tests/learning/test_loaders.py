"""Passes of a learner over a loader, in the middle of a pass of training over the same loader."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import BatchSampler, DataLoader, SubsetRandomSampler, TensorDataset

import peewit as pw


def test_a_step_in_an_epoch_leaves_workers_that_persist_to_training() -> None:
    """All passes of such a loader share one iterator, which a pass of the learner would begin anew."""
    torch.manual_seed(0)
    model, y = nn.Linear(2, 3), torch.arange(12) % 3
    dataset = TensorDataset(torch.randn(12, 2), y)
    loader = DataLoader(dataset, batch_size=3, num_workers=1, persistent_workers=True)
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.1), []
    for number, (x, targets) in enumerate(loader):
        if not number:  # its first batch is asked for, too
            learner = pw.learning.Learner(model, loader, "classification", optimizer)
        seen += targets.tolist()
        optimizer.zero_grad()
        F.cross_entropy(model(x), targets).backward()
        optimizer.step()
        if number == 1:
            learner.step()
        assert len(seen) <= 12
    assert seen == y.tolist()
    assert loader.persistent_workers


def test_batches_of_some_examples_say_how_many_there_are() -> None:
    """Where batches are sampled, the loader's own sampler is another one."""
    model, dataset = nn.Linear(2, 3), TensorDataset(torch.randn(12, 2), torch.arange(12) % 3)
    loader = DataLoader(dataset, batch_sampler=BatchSampler(SubsetRandomSampler(range(7)), 2, drop_last=False))
    learner = pw.learning.Learner(model, loader, "classification", torch.optim.SGD(model.parameters(), lr=0.1))
    assert learner.examples == 7
