"""Promises of the whole: crashes, kills, full disks, threads and random histories lose nothing."""
