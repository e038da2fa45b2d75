"""Measure programs in which nothing can be batched, under the load of several users at once.

``leaves`` has the chat model, embeddings and retriever, which count their calls, ``graphs`` and
``conversation`` the six programs made of them, ``program`` what a request is, and ``rounds`` times
the users. None of the leaves is recognised, so that acceleration can only cost something here.
"""
