"""The gateway in a process of its own, so that clients take no interpreter time of the engine's.

engine process                                  front end (a child)
  engine thread -> Outbox                   ==>   RemoteEngine -> streams -> clients
  Engine  <- OrderTaker, a thread           <==   submit, abort, questions

Both are joined by a socket pair. Towards the clients it never holds the engine up: what the socket
has no room for is merged, at most the whole output of each open request, and sent by a thread. The
end of either process is the end of the socket, which the other one notices at once.

An engine may have several such children, each with a socket pair of its own: `FrontEnds`.
"""

from __future__ import annotations

from specsched_executor.front_end.process import FrontEndProcess
from specsched_executor.front_end.setup import FrontEndSetup
from specsched_executor.front_end.several import FrontEnds

__all__ = ["FrontEndProcess", "FrontEndSetup", "FrontEnds"]
