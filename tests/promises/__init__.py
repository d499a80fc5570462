"""Promises of the whole: crashes, kills, full disks, threads, processes and random histories lose nothing."""
