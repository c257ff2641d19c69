"""Kernel methods: `hrf.learn` beside scikit-learn, at equal width and on equal rows.

``python -m benchmarks.kernel_methods`` measures test errors and fit times on four regression sets and on ``letter``
(``data.py`` reads them, ``methods.py`` lists the methods, ``measure.py`` runs them, ``table.py`` prints).
``python -m benchmarks.kernel_methods.scaling`` sends up to 10⁷ rows through a Dask cluster, and
``python -m benchmarks.kernel_methods.figure`` draws a Gaussian process with its error band.
"""
