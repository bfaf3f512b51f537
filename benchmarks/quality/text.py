"""Text: questions by what they ask for (TREC), and sentences of films: liked or not (SST-2), views or plots (Subj)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.quality.cases import DROPOUT, MEMBERS, Case, Make, Networks, Parts, Task, Training
from benchmarks.quality.reading import folder, labelled_lines, news, sst2
from benchmarks.quality.together import Bag, Lesson, Run, train_together
from benchmarks.quality.training import perceptron

TRAININGS: tuple[Training, ...] = ("early", "fixed")
LENGTH = 40  # words of a sentence that are read
WORDS, TWICE = 5000, 2  # the most frequent words have an id, if they occur twice
PADDING, UNKNOWN = 0, 1  # the first ids
WIDTH, HIDDEN = 32, 64
DROPPED = 1 / 3  # of the words of shifted sentences
MOST = 2000  # unknown sentences
LESSON = Lesson(epochs=15, batch=64, rate=3e-3)


@dataclass(frozen=True, eq=False, kw_only=True)
class Corpus:
    """Sentences with labels; the last ones are for tests."""

    sentences: Sequence[Sequence[str]]  # words
    labels: np.ndarray
    tested: int  # 0: a fifth is drawn for each split
    held: int  # for stopping, and as many for tuning
    others: dict[str, Sequence[Sequence[str]]]
    leave_out: bool

    @property
    def classes(self) -> int:
        return int(self.labels.max()) + 1


@dataclass(frozen=True, eq=False, kw_only=True)
class Job:
    """One split, whole or with one class left out, which comes last among the new labels."""

    split: int
    variant: str
    left_out: int  # -1: none
    rows: dict[str, np.ndarray]
    ids: Tensor  # of all sentences, by the words of the training part
    words: int
    parts: Parts


def split_words(sentences: Sequence[str]) -> list[list[str]]:
    return [sentence.lower().split()[:LENGTH] for sentence in sentences]


def read_trec(data: Path) -> Corpus:
    """The standard 500 questions are for tests."""
    train, test = labelled_lines(data, "trec.train"), labelled_lines(data, "trec.test")
    return Corpus(
        sentences=split_words([*train[0], *test[0]]),
        labels=np.concatenate([train[1], test[1]]),
        tested=len(test[0]),
        held=700,
        others={"sst2": split_words(sst2(data, "test")[0])},
        leave_out=True,
    )


def read_sst2(data: Path) -> Corpus:
    """The standard 1,821 sentences are for tests; the 872 for development are drawn from like those for training."""
    train, dev, test = (sst2(data, part) for part in ("train", "dev", "test"))
    return Corpus(
        sentences=split_words([*train[0], *dev[0], *test[0]]),
        labels=np.concatenate([train[1], dev[1], test[1]]),
        tested=len(test[0]),
        held=800,
        others={"trec": split_words(labelled_lines(data, "trec.train")[0])},
        leave_out=False,
    )


def read_subj(data: Path) -> Corpus:
    sentences, labels = labelled_lines(data, "subj")
    return Corpus(
        sentences=split_words(sentences),
        labels=labels,
        tested=0,
        held=1000,
        others={"news": split_words(news(data))},
        leave_out=False,
    )


READERS = {"trec": read_trec, "sst2": read_sst2, "subj": read_subj}


def network(words: int, outputs: int, dropout: float = 0.0) -> nn.Sequential:
    """The mean of the embeddings, and two linear layers."""
    layers: list[nn.Module] = [Bag(words, WIDTH)]
    if dropout:
        layers.append(nn.Dropout(dropout))
    return nn.Sequential(*layers, *perceptron(WIDTH, (HIDDEN,), outputs, dropout))


def sentences(name: str, lesson: Lesson = LESSON) -> Make:
    """Cases of a corpus: all splits are trained at once."""

    def make(task: Task, data: Path | None, splits: range, device: torch.device) -> Iterator[Case]:
        corpus = READERS[name](folder(data))
        variants = ("whole", "left out") if corpus.leave_out else ("whole",)
        jobs = [job_of(corpus, split, variant) for split in splits for variant in variants]
        runs = [
            run_of(corpus, job, number * len(corpus.sentences), member)
            for number, job in enumerate(jobs)
            for member in range(MEMBERS + 1)
        ]
        most = max(job.words for job in jobs)
        ids = torch.cat([job.ids for job in jobs]).to(device)
        trained = train_together(lambda: network(most, corpus.classes, DROPOUT), ids, runs, lesson)
        for number, job in enumerate(jobs):
            first = number * (MEMBERS + 1)
            parts = job.parts.to(device)
            for training, networks in zip(TRAININGS, trained, strict=True):
                chosen = networks[first : first + MEMBERS + 1]
                yield Case(
                    task=task.name,
                    likelihood=task.likelihood,
                    training=training,
                    variant=job.variant,
                    split=job.split,
                    parts=parts,
                    networks=Networks(tuple(chosen[:MEMBERS]), chosen[MEMBERS]),
                )

    return make


def job_of(corpus: Corpus, split: int, variant: str) -> Job:
    """Rows are drawn before a class is left out: the most frequent one first, then the others in turn."""
    random = np.random.RandomState(split)
    number = len(corpus.sentences)
    if corpus.tested:
        order, test = random.permutation(number - corpus.tested), np.arange(number - corpus.tested, number)
    else:
        test, order = np.split(random.permutation(number), [number // 5])
    frequent = np.argsort(-np.bincount(corpus.labels), kind="stable")
    left_out = int(frequent[split % len(frequent)]) if variant == "left out" else -1
    pieces = np.split(order, [corpus.held, 2 * corpus.held])
    rows = dict(zip(("stop", "validation", "train"), pieces, strict=True), test=test)
    rows = {part: own[corpus.labels[own] != left_out] for part, own in rows.items()}
    vocabulary = vocabulary_of([corpus.sentences[row] for row in rows["train"]])
    ids = ids_of(corpus.sentences, vocabulary)
    labels = torch.tensor(corpus.labels - ((corpus.labels > left_out) & (left_out >= 0)), dtype=torch.int64)
    examples = {part: (ids[own], labels[own]) for part, own in rows.items()}
    if variant == "left out":
        strange = random.permutation(np.nonzero(corpus.labels == left_out)[0])[:MOST]
        unknown = {"left out": ids[strange]}
    else:
        unknown = {
            name: ids_of([other[row] for row in random.permutation(len(other))[:MOST]], vocabulary)
            for name, other in corpus.others.items()
        }
    shifted = dropped(examples["test"][0], split), labels[rows["test"]]
    parts = Parts(**examples, unknown=unknown, shifted={"words dropped": shifted})
    return Job(
        split=split,
        variant=variant,
        left_out=left_out,
        rows=rows,
        ids=ids,
        words=len(vocabulary) + 2,
        parts=parts,
    )


def vocabulary_of(sentences: Sequence[Sequence[str]]) -> dict[str, int]:
    """Ids of frequent words. Words that occur once have none, so that something is learnt about unknown ones."""
    counts = Counter(word for sentence in sentences for word in sentence)
    words = [word for word, count in counts.most_common(WORDS) if count >= TWICE]
    return {word: place + 2 for place, word in enumerate(words)}


def ids_of(sentences: Sequence[Sequence[str]], vocabulary: dict[str, int]) -> Tensor:
    """(N, T)."""
    ids = np.full((len(sentences), LENGTH), PADDING)
    for row, sentence in enumerate(sentences):
        ids[row, : len(sentence)] = [vocabulary.get(word, UNKNOWN) for word in sentence]
    return torch.tensor(ids)


def dropped(ids: Tensor, seed: int) -> Tensor:
    """A third of the words made unknown."""
    chosen = torch.rand(ids.shape, generator=torch.Generator().manual_seed(seed)) < DROPPED
    return torch.where(chosen & (ids != PADDING), UNKNOWN, ids)


def run_of(corpus: Corpus, job: Job, start: int, member: int) -> Run:
    """Its sentences begin at this row among those of all jobs."""
    dropout = DROPOUT * (member == MEMBERS)
    outputs = corpus.classes - (job.left_out >= 0)
    return Run(
        seed=1000 * job.split + 10 * (job.variant == "left out") + member,
        dropout=dropout,
        train=(torch.tensor(job.rows["train"]) + start, job.parts.train[1]),
        stop=(torch.tensor(job.rows["stop"]) + start, job.parts.stop[1]),
        build=lambda: network(job.words, outputs, dropout),
    )
