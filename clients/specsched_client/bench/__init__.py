"""Measure a running executor under load: `specsched bench serve`.

One measurement is a grid of loads (how requests arrive) and variants (a policy, or an executor to
compare with). All rounds of one load are interleaved in one server session, so that whatever slows
the machine slows every variant; ratios are taken within a repeat.
"""

from __future__ import annotations
