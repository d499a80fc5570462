"""Another process that does what a test tells it, line by line: so that a story with several processes has one teller.

`Puppet.do(code)` runs Python code there, in one namespace that lasts as long as the process, and gives what the code
left in `answer`. An exception there is raised here as `PuppetError`, with its type's name, its text and its marks.
"""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

PRELUDE = "import os, sys, time, kstore"


class PuppetError(Exception):
    """What was raised in the other process."""

    def __init__(self, kind: str, text: str, marks: dict[str, int]) -> None:
        super().__init__(f"{kind}: {text}")
        self.kind = kind
        self.marks = marks


class Puppet:
    """A process of its own; `kill` is SIGKILL, and so is the end of a `with` block."""

    def __init__(self, *prelude: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", __file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for line in (PRELUDE, *prelude):
            self.do(line)

    def do(self, code: str) -> Any:
        """Run this there, and wait for it."""
        self.begin(code)
        return self.answer()

    def begin(self, code: str) -> None:
        """Have this run there, and do not wait."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(textwrap.dedent(code)) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """What the code that was begun came to."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"the other process ended with {self.process.wait()}"
        said = json.loads(line)
        if "kind" in said:
            raise PuppetError(said["kind"], said["text"], said["marks"])
        return said["answer"]

    def say(self) -> str:
        """The next line that the code there prints while it runs; "" when the process has ended."""
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Puppet:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def main() -> None:
    namespace: dict[str, Any] = {}
    for line in sys.stdin:
        namespace["answer"] = None
        try:
            exec(json.loads(line), namespace)
            said = {"answer": namespace["answer"]}
        except Exception as error:
            marks = {
                name: getattr(error, name)
                for name in ("log_start_offset", "log_end_offset")
                if isinstance(getattr(error, name, None), int)
            }
            said = {"kind": type(error).__name__, "text": str(error), "marks": marks}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
