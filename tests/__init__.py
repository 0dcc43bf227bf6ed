"""Run them with ``pytest``, or on every supported Python with ``tox run``."""

import pytest

pytest.register_assert_rewrite("tests.guard_contract")
