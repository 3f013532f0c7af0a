"""The one place that knows about the versions and gaps of other packages."""


def setup() -> None:
    """Prepare the process for mmdet and mmpretrain; safe to call more than once."""
