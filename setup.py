"""The compiled modules; everything else about the package is in pyproject.toml."""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("KSTORE_DEBUG") == "1"
SANITIZE = os.environ.get("KSTORE_SANITIZE") == "1"
flags = ["-O1", "-g", "-fsanitize=address,undefined", "-fno-omit-frame-pointer"] if SANITIZE else ["-O3", "-g1"]
links = ["-fsanitize=address,undefined"] if SANITIZE else []
names = ("_core", "_index", "_writer")

setup(
    ext_modules=cythonize(
        [
            Extension(
                f"kstore.{name}",
                [f"kstore/{name}.pyx"],
                depends=["kstore/_wire.pxd", "kstore/crc32c.h"],
                extra_compile_args=[*flags, "-Wall", "-Wno-unused-function"],
                extra_link_args=links,
            )
            for name in names
            if os.path.exists(f"kstore/{name}.pyx")
        ],
        compiler_directives={
            "language_level": "3",
            "boundscheck": DEBUG,
            "wraparound": False,
            "initializedcheck": DEBUG,
            "embedsignature": True,
        },
        force=DEBUG or SANITIZE,
        nthreads=2,
    )
)
