"""Errors that a person can meet. Each one says what is wrong and, as `hint`, what to do about it.

    FtisError (1)
      UsageError (2)            a flag, file, model, task or invite that cannot work as given
      CheckFailed (3)           a check of this machine says that a node cannot work here
      NotAllowed (4)            the swarm or the operator does not permit it
      SwarmUnreachable (5)      nobody answered; worth another try later
      TaskError (1)             a task's own checker failed; never mistaken for a wrong answer
      EngineError (1)           the generator broke its promise (stale weights, non-finite log-probs)
      TrainingStopped (1)       too many non-finite steps in a row

The number is the exit code of the process. A broken promise of a peer is not here: it is a counted `Reason`.
"""

from __future__ import annotations


class FtisError(Exception):
    """Base of everything this program reports to its user. `hint` names the remedy in one sentence."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.hint = hint


class UsageError(FtisError):
    """The user asked for something that cannot work; nothing was changed."""

    exit_code = 2


class CheckFailed(FtisError):
    """This machine lacks something that a node needs."""

    exit_code = 3


class NotAllowed(FtisError):
    """The swarm's rules or the operator's own limits forbid it."""

    exit_code = 4


class SwarmUnreachable(FtisError):
    """No address of the swarm answered; the same command may work later."""

    exit_code = 5


class TaskError(FtisError):
    """A task's checker raised, hung or returned something that is not a score."""


class EngineError(FtisError):
    """The generator cannot be trusted: it did not start, or its weights are not the learner's."""


class TrainingStopped(FtisError):
    """Training gave up for a stated reason; the last good checkpoint is untouched."""
