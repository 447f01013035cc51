"""Networks of the papers, and the sizes that are benchmarked: plain modules that know nothing of privacy.

None mixes records or keeps running statistics, so each can be trained privately as it is.
"""
