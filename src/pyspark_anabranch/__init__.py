"""Lets Spark find `.format("anabranch")` by itself.

Spark imports every module whose name starts with `pyspark_` and looks for `DefaultSource` in it. One such
module that fails disables the discovery of all of them, so this one imports nothing before it is asked, and
answers with "no such attribute" when the source cannot be loaded.
"""


def __getattr__(name: str) -> object:
    if name == "DefaultSource":
        try:
            from anabranch.spark.source.data_source import AnabranchSource
        except Exception as error:
            raise AttributeError(f"the anabranch source cannot be loaded: {error!r}") from error
        return AnabranchSource
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
