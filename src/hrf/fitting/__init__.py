"""Fitting to data: the matrix A of an exponential map in closed form, and clusters of queries and keys."""

from hrf.fitting.clusters import (
    ClusterMoments,
    Clusters,
    assign,
    cluster_sizes,
    kmeans,
    moments_by_cluster,
)
from hrf.fitting.matrices import (
    KINDS,
    RIDGE,
    DiagonalKind,
    MatrixKind,
    SecondMoments,
    fit_matrix,
    matrix_from_centers,
    matrix_loss,
    optimal_loss,
)
from hrf.fitting.pairs import heavy_keys, largest_pairs, pair_moments, samples
from hrf.fitting.residuals import ResidualFit, fit_residuals

__all__ = [
    "KINDS",
    "RIDGE",
    "ClusterMoments",
    "Clusters",
    "DiagonalKind",
    "MatrixKind",
    "ResidualFit",
    "SecondMoments",
    "assign",
    "cluster_sizes",
    "fit_matrix",
    "fit_residuals",
    "heavy_keys",
    "kmeans",
    "largest_pairs",
    "matrix_from_centers",
    "matrix_loss",
    "moments_by_cluster",
    "optimal_loss",
    "pair_moments",
    "samples",
]
