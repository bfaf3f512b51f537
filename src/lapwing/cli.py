"""The command `lapwing`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from . import __version__
from .complaints import nearest

INTERRUPTED = 130  # what shells expect after Ctrl-C


class Parser(argparse.ArgumentParser):
    """Names the nearest command where an unknown one was given."""

    commands: tuple[str, ...] = ()

    def parse_known_args(self, args=None, namespace=None):  # type: ignore[no-untyped-def]  # argparse overloads it
        """Look at the command first: argparse would list the known ones only."""
        given = list(sys.argv[1:] if args is None else args)
        if self.commands and given and not given[0].startswith("-") and given[0] not in self.commands:
            self.error(
                f"{given[0]!r} is no command; {nearest(given[0], self.commands)}Known: {', '.join(self.commands)}."
            )
        return super().parse_known_args(given, namespace)


def parser() -> Parser:
    """All commands and their options."""
    made = Parser(prog="lapwing", description="Laplace approximations for any PyTorch network.")
    made.add_argument("--version", action="version", version=f"lapwing {__version__}")
    commands = made.add_subparsers(dest="command", metavar="command", parser_class=argparse.ArgumentParser)
    demo = commands.add_parser(
        "demo",
        help="train a small network on real images and compare ways to predict with it",
        description="Trains a small CNN on eight of the ten classes of Fashion-MNIST, which comes with the package, "
        "and compares the network as it is, temperature scaling and Laplace approximations. It writes nothing.",
    )
    demo.add_argument("--seed", type=int, default=0, help="of the weights and the order of images (default: 0)")
    demo.add_argument("--quick", action="store_true", help="a few images and epochs: checks that it runs, no more")
    made.commands = tuple(commands.choices)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status."""
    made = parser()
    given = made.parse_args(arguments)
    if given.command is None:
        made.print_help()
        return 0
    try:
        from .demo import run  # inside, so that an interrupted import prints one line too

        run(quick=given.quick, seed=given.seed)
    except KeyboardInterrupt:
        print("Interrupted; nothing was written.", file=sys.stderr)
        return INTERRUPTED
    return 0


if __name__ == "__main__":
    sys.exit(main())
