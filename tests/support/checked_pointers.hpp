// A pointer for the parsers of kstore/c, compiled as C++: it knows the input that it belongs to, and ends the process when
// it is moved out of it (one past the end is within), even if nothing is read there.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

struct Checked {
    const uint8_t *p = nullptr, *low = nullptr, *high = nullptr;
    Checked() = default;
    Checked(std::nullptr_t) {}
    Checked(const uint8_t *p, const uint8_t *low, const uint8_t *high) : p(p), low(low), high(high) {}
    Checked moved(int64_t n) const {
        if (!p || n < low - p || n > high - p) {
            std::fprintf(stderr, "a pointer %lld bytes on, at byte %lld of %lld\n", (long long)n, (long long)(p - low),
                         (long long)(high - low));
            std::exit(3);
        }
        return Checked(p + n, low, high);
    }
    const uint8_t &operator*() const { return (*this)[0]; }
    const uint8_t &operator[](int64_t n) const {
        if (moved(n).p == high) std::exit(4);
        return p[n];
    }
    Checked operator+(int64_t n) const { return moved(n); }
    Checked operator-(int64_t n) const { return moved(-n); }
    int64_t operator-(const Checked &other) const { return p - other.p; }
    Checked &operator+=(int64_t n) { return *this = moved(n); }
    Checked operator++(int) {
        Checked before = *this;
        *this = moved(1);
        return before;
    }
    explicit operator bool() const { return p; }
    bool operator!() const { return !p; }
    bool operator==(const Checked &other) const { return p == other.p; }
    bool operator!=(const Checked &other) const { return p != other.p; }
    bool operator>=(const Checked &other) const { return p >= other.p; }
    bool operator<=(const Checked &other) const { return p <= other.p; }
};
