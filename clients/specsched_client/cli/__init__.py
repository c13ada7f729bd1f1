"""The one command line, `specsched`.

Exit codes: 0 done; 1 the server failed or a request was not completed; 2 the input cannot be used;
3 nobody answers at the target; 4 the time limit passed; 5 an optional package is missing; 130
interrupted.
"""

from specsched_client.cli._main import main

__all__ = ["main"]
