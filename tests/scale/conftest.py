"""Tests of other schedulers; `make test-scale` installs their packages and Debian's Java."""

from importlib.util import find_spec

PACKAGES = {
    "test_dask.py": "distributed",
    "test_kubernetes.py": "kubernetes_validate",
    "test_spark.py": "pyspark",
}
collect_ignore = [file for file, package in PACKAGES.items() if find_spec(package) is None]
