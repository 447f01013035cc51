"""Files written whole and read strictly.

- ``whole_file``: a file that appears whole or not at all
- ``strict_json``: JSON without NaN, doubled keys, unknown or missing fields
- ``json_file``: the two together
- ``lines_file``: JSON lines that are only ever added to
- ``lock``: a lock that one process holds at a time
"""
