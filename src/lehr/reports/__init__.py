"""Looking back: what was promised and what was planned, for people and for programs.

- ``certificate``: what a released model promises, in terms that a stranger can check
- ``issuing``: a certificate from what a plan allowed; what is not proven is refused
- ``checking``: whether a certificate's numbers follow from its events
- ``wording``: a certificate as a page of plain text
- ``certificate_file``: certificate.json
- ``run_reading``, ``run_page``: a run, read and as one web page; ``page_frame`` is what pages share
- ``model_card``: what goes out with a model
- ``progress``, ``tensorboard``: how a run goes, on a screen and for TensorBoard
- ``curve``, ``terminal_chart``, ``plan_page``: ε against steps, in the terminal and as one web page
- ``rounding``: fewer digits, and never a smaller number
- ``proof_file``: the hash of a proof
"""
