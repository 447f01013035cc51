"""The command ``lehr``: ``main`` lists the commands, and each other module has one or a few of them.

- ``common``: output, exit codes, and the options that commands share
- ``certificate`` has ``lehr release``, ``evaluate`` has ``lehr predict``, ``plan`` has ``lehr account`` and
  ``lehr simulate``, ``report`` has ``lehr serve``

A module is imported when its command runs, and imports torch inside its functions only: ``lehr --help`` is instant.
"""
