"""Fitting to data: the matrix A of an exponential map in closed form, clusters of queries and of keys."""

from hrf.fitting.clusters import ClusterMoments, Clusters, assign, kmeans, moments_by_cluster
from hrf.fitting.matrices import (
    KINDS,
    RIDGE,
    SecondMoments,
    fit_matrix,
    matrix_from_centers,
    matrix_loss,
    optimal_loss,
)
from hrf.fitting.pairs import heavy_keys, largest_pairs, pair_moments, samples

__all__ = [
    "KINDS",
    "RIDGE",
    "ClusterMoments",
    "Clusters",
    "SecondMoments",
    "assign",
    "fit_matrix",
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
