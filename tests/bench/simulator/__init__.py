"""A serving simulator: an instrument for choosing, not evidence about the product.

Simulated: requests, their arrival, the time of a step. Not simulated: the decisions, which the
product's own code takes from the same inputs in the same order as in an executor (a plan rests on
confidences one draft older than the drafts it verifies, and on a forecast of the batch; live
confidences rank). Outcomes are recorded ones of a real drafter, costs measured ones of an H200.

    python -m tests.bench.simulator --help

What it leaves out: the host's own time, plans that are late, errors of the cost model that come
from the machine's state, stop strings, and what else a request's drafts may depend on than on its
position in a recorded answer.
"""
