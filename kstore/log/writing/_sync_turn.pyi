"""Group commit: the turn to sync a log, and the threads that wait for it."""

from typing import Final

from typing_extensions import disjoint_base

GATHERING_SHARE: Final[float]
LONGEST_GATHERING: Final[float]

@disjoint_base
class Turn:
    """The turn to sync one log. Thread-safe; a thread that has the turn must not request it again."""
    @property
    def waiters(self) -> int:
        """The number of threads that sleep until they have the turn or their records are on the disk."""
    def take_or_wait(self, target: int) -> bool:
        """Take the turn and return True; or sleep until it may be free or `target` is on the disk, and return False."""
    def take(self) -> None:
        """Wait for the turn and take it; threads that call this get it in the order of their calls."""
    def gather(self) -> None:
        """With the turn, wait briefly until as many threads wait as after the last sync, to serve them all together.

        The last sync has woken these threads, and they are about to append again. Does not wait if there were no other
        threads; if they do not come back, the next call does not wait.
        """
    def give(self, covered: int) -> int:
        """Give back the turn, if this thread has it. Wake the threads whose target `covered` reaches; return how many.

        Without the turn, wake a waiting thread to take it, if no thread has it.
        """
