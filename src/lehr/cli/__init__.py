"""The command ``lehr``: one file per command.

- ``main``: the commands together
- ``train``, ``data``, ``plan``, ``account``, ``budget``, ``certificate``, ``report``, ``release``, ``evaluate``,
  ``predict``: the commands
- ``options``: the options that several of them share, and the event or plan that they describe
- ``answering``: tables for people, one JSON object for programs
- ``failing``: exit codes, and errors as one line

Modules here load nothing that counts (numpy and what stands on it) before a command runs: ``lehr --help`` is instant.
"""
