"""The compiled modules; everything else about the package is in pyproject.toml.

Each .c file of kstore/c is compiled once. Those with state are part of one module: the pool of blocks and the crew of
threads of `kstore.columns._native`, the codecs' functions of `kstore.codec._compression`. The others are a static
library, from which each module takes what it calls.

KSTORE_CHECKED, which the Makefile sets, asks for a checked build: "sanitize" with Cython's bounds checks and the
compiler's address and undefined-behaviour checks, "tsan" with its checks for data races, "coverage" (by clang) with
what a coverage-guided fuzzer needs. Each keeps its generated C in a directory of its own: no two builds share a file.

A free-threaded Python switches the GIL on again when it imports these modules, because they do not declare that they
can do without it: the GIL keeps two appends to one log apart.
"""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup
from setuptools.command.build_ext import build_ext

FLAGS = {
    "sanitize": ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"],
    "tsan": ["-fsanitize=thread"],
    "coverage": ["-fsanitize=fuzzer-no-link,address", "-shared-libasan"],
}
CHECKED = os.environ.get("KSTORE_CHECKED")

if CHECKED:
    build_dir, link_args = f"build/{CHECKED}/c", FLAGS[CHECKED]
    # gcc optimizes what the address sanitizer adds for longer than the tests then save.
    compile_args = ["-O0" if CHECKED == "sanitize" else "-O1", "-g1", "-fno-omit-frame-pointer", *link_args]
else:
    build_dir, compile_args, link_args = None, ["-O3", "-g1"], []
compile_args += ["-Wall", "-Wno-unused-function", "-fvisibility=hidden"]

STATELESS = [
    "kstore/c/cleaned.c",
    "kstore/c/columns/encode.c",
    "kstore/c/columns/gather.c",
    "kstore/c/columns/latest.c",
    "kstore/c/crc32.c",
    "kstore/c/crc32c.c",
    "kstore/c/keyhash.c",
    "kstore/c/keymap.c",
    "kstore/c/newest.c",
    "kstore/c/transactions.c",
    "kstore/c/window.c",
]
WITH_STATE = {
    "kstore.codec._compression": ["kstore/c/compress.c", "kstore/c/unpack.c"],
    "kstore.columns._native": sorted({*map(str, Path("kstore/c/columns").glob("*.c"))} - {*STATELESS}),
}
HEADERS = [str(path) for path in sorted(Path("kstore/c").rglob("*.h"))]


class BuildExtensions(build_ext):
    """Builds the static library first, also where only the extensions were asked for."""

    def run(self):
        self.run_command("build_clib")
        super().run()


def extension(source):
    name = ".".join(source.with_suffix("").parts)
    return Extension(
        name,
        [str(source), *WITH_STATE.get(name, [])],
        depends=[*map(str, Path("kstore").rglob("*.pxd")), *HEADERS, *STATELESS],
        include_dirs=["kstore/c"],
        extra_compile_args=compile_args,
        extra_link_args=link_args,
    )


setup(
    packages=[*find_packages(include=["kstore", "kstore.*"]), "pyspark_kstore", "pytest_kstore"],
    cmdclass={"build_ext": BuildExtensions},
    options={"build_ext": {"parallel": os.cpu_count()}},
    libraries=[
        (
            "kstore_c",
            {"sources": STATELESS, "obj_deps": {"": HEADERS}, "include_dirs": ["kstore/c"], "cflags": compile_args},
        )
    ],
    ext_modules=cythonize(
        [extension(source) for source in sorted(Path("kstore").rglob("*.pyx"))],
        build_dir=build_dir,
        compiler_directives={
            "language_level": "3",
            "boundscheck": CHECKED == "sanitize",
            "wraparound": False,
            "initializedcheck": CHECKED == "sanitize",
            "embedsignature": True,
            "embedsignature.format": "clinic",
            "binding": False,
            "annotation_typing": False,  # annotations are for docs/make_stubs.py
        },
        force=CHECKED is not None,
        nthreads=2,
    ),
)
