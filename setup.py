"""The compiled modules; everything else about the package is in pyproject.toml.

Two environment variables, read by `make debug` and `make sanitize`, ask for other builds. KSTORE_DEBUG=1 turns Cython's
bounds checks on, KSTORE_SANITIZE=1 the compiler's address and undefined-behaviour checks; each keeps its generated C in
a directory of its own, so that no two builds share a file.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DEBUG = os.environ.get("KSTORE_DEBUG") == "1"
SANITIZE = os.environ.get("KSTORE_SANITIZE") == "1"
CHECKS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined", "-fno-omit-frame-pointer"]

if SANITIZE:
    build_dir, compile_args, link_args = "build/sanitize/c", ["-O1", "-g", *CHECKS], ["-fsanitize=address,undefined"]
elif DEBUG:
    build_dir, compile_args, link_args = "build/debug/c", ["-O1", "-g"], []
else:
    build_dir, compile_args, link_args = None, ["-O3", "-g1"], []

setup(
    options={"build_ext": {"parallel": os.cpu_count()}},
    ext_modules=cythonize(
        [
            Extension(
                f"kstore.{source.stem}",
                [str(source)],
                depends=["kstore/_wire.pxd", *map(str, Path("kstore").glob("*.h"))],
                include_dirs=["kstore"],
                extra_compile_args=[*compile_args, "-Wall", "-Wno-unused-function"],
                extra_link_args=link_args,
            )
            for source in sorted(Path("kstore").glob("*.pyx"))
        ],
        build_dir=build_dir,
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
