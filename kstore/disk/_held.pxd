# cython: language_level=3
"""`c/held.h` for Cython: lets a short walk over a file hold the GIL."""


cdef extern from "held.h" nogil:
    ctypedef struct Held "ks_held":
        pass
    void hold "ks_hold"(Held *held) noexcept
    void take_back "ks_take_back"(Held *held) noexcept
