"""Web pages, charts and progress displays.

- ``page``, ``chart``: the builder of all pages, and charts as plain values for pages and terminals
- ``run_page``, ``compare_page``, ``plan_page``, ``prediction_page``, ``search_page``, ``audit_page``: the pages
- ``run_charts``: the charts of runs
- ``audit_file``: an audit in the folder of its run
- ``progress``: the progress of a run, an audit or a search
- ``serving``: the local web server of ``lehr serve``
"""
