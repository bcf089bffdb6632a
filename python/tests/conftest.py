"""What the tests share."""
import pytest

import entwine


@pytest.fixture
def world():
    """A world of one rank."""
    with entwine.World() as alone:
        yield alone
