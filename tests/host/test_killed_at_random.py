"""R7: killed at random instants, the real command line among them, the next run converges and leaves nothing.

Apart from test_killed.py, so that both are tried at the same time; `hack/faults killed` tries more.
"""

import pytest

from tests.faults.hosts import killed
from tests.faults.hosts.bench import Bench
from tests.lib.rules import rule

pytestmark = pytest.mark.long

EACH = 25
SEEDS = (pytest.param(0, marks=pytest.mark.matrix("kill")), *range(1, 8))


@rule("R7")
@pytest.mark.parametrize("seed", SEEDS)
def test_r7_killed_at_random_instants_the_next_run_goes_on(bench: Bench, seed: int) -> None:
    tried = killed.at_random(bench, EACH, seed)
    assert not tried.bad, "\n".join(tried.bad)
