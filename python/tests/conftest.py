"""What the tests share."""
import sys

import pytest

import entwine


def pytest_addoption(parser):
    parser.addoption("--without-torch", action="store_true",
                     help="as if torch were not installed: make test-torch runs those tests")


def pytest_configure(config):
    if config.getoption("--without-torch"):
        sys.modules["torch"] = None


@pytest.fixture
def world():
    """A world of one rank."""
    with entwine.World() as alone:
        yield alone
