"""`Watch`: waits in the kernel until a directory or a file in it has changed, by inotify. Linux only."""

from typing import Self

from typing_extensions import disjoint_base

@disjoint_base
class Watch:
    """A descriptor that can be read when a directory has changed. `cancel` is for any thread, the rest for one."""
    @property
    def fd(self) -> int: ...
    @property
    def directories(self) -> tuple[str, ...]: ...
    def __new__(cls, directories: tuple[str, ...]) -> Self:
        """Open the descriptor; raise `OSError` if the system has none or a file system does not report changes."""
    @property
    def is_armed(self) -> bool:
        """Whether the directories were watched when the last events were taken."""
    def arm(self) -> bool:
        """Watch the directories that are not watched, and take earlier events; return whether all are watched now."""
    def ended_early(self) -> None:
        """Note that a wait found news at its first look; stop watching after some of these.

        A writer that is ahead of its reader then pays for no events.
        """
    def wait(self, seconds: float) -> bool:
        """Wait until a directory has changed since it was armed; return False after the time."""
    def take(self) -> bool:
        """Take what has happened in a wait that is over; return whether a directory has changed."""
    def cancel(self) -> None:
        """Stop watching, which ends a `wait`, now or when it begins."""
    def close(self) -> None:
        """Close the descriptor. Idempotent."""
