"""Kernel methods: `hrf.learn` beside scikit-learn, test error over time to fit, on all rows.

``python -m benchmarks.kernel_methods`` measures four regression sets and ``letter`` (``data.py`` reads them,
``methods.py`` lists the methods, ``measure.py`` searches γ and penalties and fits, ``table.py`` prints); it keeps what
is measured already. ``python -m benchmarks.kernel_methods.curves`` draws the results.
``python -m benchmarks.kernel_methods.columns`` compares projections of rows with many columns.
``python -m benchmarks.kernel_methods.scaling`` sends up to 10⁷ rows through a Dask cluster, and
``python -m benchmarks.kernel_methods.figure`` draws a Gaussian process with its error band.
"""
