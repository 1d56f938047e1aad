"""Made-up worlds for every test of this folder."""

from worlds import make_world  # noqa: F401 - a fixture
