from __future__ import annotations

import os

import pytest

from anabranch.spark.compiled_pyspark import use_compiled_pyspark


def test_the_home_has_all_of_spark_but_its_zipped_python_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "to be restored")
    monkeypatch.delenv("SPARK_HOME")
    home = use_compiled_pyspark()
    assert home is not None
    assert os.environ["SPARK_HOME"] == str(home)
    assert list((home / "jars").glob("spark-core_*.jar"))
    assert (home / "bin" / "spark-submit").exists()
    assert not (home / "python").exists()


def test_a_home_that_is_set_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert use_compiled_pyspark() is None
    assert os.environ["SPARK_HOME"] == "/opt/spark"
