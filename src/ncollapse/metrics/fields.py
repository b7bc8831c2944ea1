"""The table of everything `measure` reports: one row a field, in the order in which they are printed."""

from __future__ import annotations

from typing import NamedTuple


class Field(NamedTuple):
    """One measured number."""

    name: str
    group: str
    meaning: str  # one line
    at_collapse: str  # the value at full collapse of balanced classes; "" where it depends on the problem
    formula: str
    source: str  # paper and equation


BCE = "bce-vs-ce"
MSE = "mse-landscape"
RELU = "imbalanced-relu"

FIELDS: tuple[Field, ...] = (
    # within-class collapse
    Field("nc1", "within", "within-class spread relative to between-class spread", "0",
          "trace(Σ_W Σ_B⁺) / K", f"{BCE} Eqs. 24-27, 32"),
    Field("nc1_balanced", "within", "nc1 with the global mean taken over classes, not samples", "0",
          "trace(Σ_W Σ_B⁺) / K, h̄ = Σ_k h̄_k / K", f"variant of {BCE} Eq. 32"),
    Field("nc1_quotient", "within", "ratio of the two traces", "0",
          "trace Σ_W / trace Σ_B", "Tirer, Huang & Niles-Weed 2023, Sec. 3"),
    Field("cdnv", "within", "class-distance normalised variance, mean over pairs of classes", "0",
          "mean_{k≠l} (v_k + v_l) / (2 |h̄_k − h̄_l|²)", "Galanti et al. 2022"),
    Field("numerical_rank", "within", "effective dimension of one class's features (on request)", "1",
          "mean_k |H_k|_*² / |H_k|_F²", f"{MSE} Sec. 4"),
    # frames
    Field("nc2", "frames", "distance of the centred classifier to a simplex ETF", "0",
          "‖W̃W̃ᵀ/‖W̃W̃ᵀ‖_F − (I − 11ᵀ/K)/√(K−1)‖_F", f"{BCE} Eqs. 33, 35"),
    Field("nc2_uncentred", "frames", "the same for the classifier as it is", "0",
          "‖WWᵀ/‖WWᵀ‖_F − (I − 11ᵀ/K)/√(K−1)‖_F", f"all-losses Sec. 4; {MSE} Eq. 7; Zhu et al. 2021"),
    Field("nc2_means", "frames", "the same for the centred class means", "0",
          "‖H̃ᵀH̃/‖H̃ᵀH̃‖_F − (I − 11ᵀ/K)/√(K−1)‖_F", f"{BCE} Eqs. 28, 29 in the form of Eq. 33"),
    Field("nc2_rank", "frames", "distance of the classifier to the nearest rank-d ETF approximation", "0",
          "min_P ‖WWᵀ/‖WWᵀ‖_F − P/√r‖_F, P² = P = Pᵀ, P1 = 0, rank P = r = min(d, K−1)", f"{MSE} Thm. 3.1"),
    Field("equinorm_means", "frames", "variation of the norms of the centred class means", "0",
          "std_k |h̄_k − h̄| / mean_k |h̄_k − h̄|", f"Papyan et al. 2020; {BCE} Eq. 28"),
    Field("equinorm_weights", "frames", "variation of the norms of the classifier's rows", "0",
          "std_k |w_k| / mean_k |w_k|", "Papyan et al. 2020"),
    Field("equiangle_means", "frames", "deviation of the means' angles from an ETF's", "0",
          "mean_{k≠l} |cos(h̄_k − h̄, h̄_l − h̄) + 1/(K−1)|", f"Papyan et al. 2020; {BCE} Eq. 29"),
    Field("equiangle_weights", "frames", "deviation of the classifier's angles from an ETF's", "0",
          "mean_{k≠l} |cos(w_k, w_l) + 1/(K−1)|", "Papyan et al. 2020"),
    # duality
    Field("nc3", "duality", "classifier against centred class means", "0",
          "‖WH̃/‖WH̃‖_F − (I − 11ᵀ/K)/√(K−1)‖_F", f"{BCE} Eqs. 34, 36"),
    Field("nc3_centred", "duality", "nc3 with the classifier centred too (NC3′)", "0",
          "‖W̃H̃/‖W̃H̃‖_F − (I − 11ᵀ/K)/√(K−1)‖_F", f"{BCE} Eq. 38"),
    Field("nc3_distance", "duality", "distance of the directions of classifier and centred means", "0",
          "‖W/‖W‖_F − H̃ᵀ/‖H̃‖_F‖_F", f"Papyan et al. 2020; {BCE} Eq. 30"),
    # decisions
    Field("nc4", "decisions", "share of decisions that agree with the nearest class mean", "1",
          "mean_i [argmax_j (w_j h_i − b_j) = argmin_j |h_i − h̄_j|]", f"{BCE} Eq. 31"),
    Field("nearest_mean_accuracy", "decisions", "share of samples nearest to the mean of their own class", "1",
          "mean_i [argmin_j |h_i − h̄_j| = y_i]", "Papyan et al. 2020"),
    Field("accuracy", "decisions", "share of samples with the largest logit at their label", "1",
          "mean_i [argmax_j (w_j h_i − b_j) = y_i]", f"{BCE} Eqs. 40-42"),
    Field("uniform_accuracy", "decisions", "share decided rightly by one threshold for all, exact", "1",
          "max_t mean_i [z_y > t ≥ max_{j≠y} z_j]", f"{BCE} Eqs. 43-45"),
    Field("uniform_threshold", "decisions", "a threshold that reaches it", "",
          "argmax_t", f"{BCE} Eq. 45"),
    Field("uniform_accuracy_grid", "decisions", "the same by the paper's 200 thresholds", "1",
          "max over 200 t in [min z_y, max z_j]", f"{BCE} App. A.2, Eq. 48"),
    Field("class_accuracy", "decisions", "accuracy class by class", "1",
          "mean_{i: y_i = k} [argmax_j (w_j h_i − b_j) = k]", f"{BCE} Eq. 42"),
    Field("cosine_margin", "decisions", "angle margin of each sample: own cosine minus the next", "K/(K−1)",
          "cos(w_y − w̄, h − h̄) − max_{j≠y} cos(w_j − w̄, h − h̄)", f"{MSE} Sec. 4"),
    # similarity
    Field("compactness", "similarity", "mean cosine inside a class, centred, mapped to [0, 1]", "1",
          "(1 + mean_k mean_{i,i'} cos(h_i − h̄, h_i' − h̄)) / 2", f"{BCE} Eq. 49"),
    Field("compactness_uncentred", "similarity", "the same for features as they are", "1",
          "(1 + mean_k mean_{i,i'} cos(h_i, h_i')) / 2", f"{BCE} Eq. 49, uncentred as Eq. 50"),
    Field("distinctiveness", "similarity", "mean cosine between classes, uncentred, mapped to [0, 1]",
          "K/(2(K−1)); 1/2 for h ≥ 0", "(1 − mean_{k≠k'} mean_{i,i'} cos(h_i, h_i')) / 2", f"{BCE} Eq. 50"),
    Field("distinctiveness_centred", "similarity", "the same for centred features", "K/(2(K−1))",
          "(1 − mean_{k≠k'} mean_{i,i'} cos(h_i − h̄, h_i' − h̄)) / 2", f"{BCE} Eq. 50, centred as Eq. 49"),
    # scores
    Field("positive_score", "scores", "score of the own class, without bias", "std 0",
          "w_y h, over N samples", f"{BCE} Eqs. 51, 52"),
    Field("negative_score", "scores", "scores of the other classes, without bias", "std 0",
          "w_j h, j ≠ y, over N(K−1) pairs", f"{BCE} Eqs. 53, 54"),
    Field("bias", "scores", "the thresholds b of z = W h − b", "std 0",
          "b_k, over K classes", f"{BCE} Eqs. 55, 56"),
    Field("weight_energy", "scores", "ρ, the squared norm of the classifier", "",
          "‖W‖_F²", f"{BCE} App. B"),
    Field("feature_energy", "scores", "mean squared norm of a feature", "",
          "mean_i |h_i|²", f"{BCE} Eq. 3"),
    Field("bias_residual", "scores", "left side of the optimal bias's equation (needs a problem)", "0 (centred phase)",
          "α(b) at the mean bias, with its λ_b b term", f"{BCE} Eqs. 12, 57"),
    Field("bias_residual_printed", "scores", "the same as the paper tabulates it", "",
          "α(b) without its λ_b b term", f"{BCE} Tables 6-11"),
    # imbalanced classes
    Field("nc2_relu", "imbalanced", "classifier against the one optimal for these non-negative means", "0",
          "‖W/‖W‖_F − U/‖U‖_F‖_F, u_k = K√n_k h̄_k − Σ_m √n_m h̄_m", f"{RELU} Eq. 20"),
    Field("nc3_relu", "imbalanced", "mean logits against the optimal ones (needs a problem)", "0",
          "‖WH̄/‖WH̄‖_F − Z/‖Z‖_F‖_F, Z_jk = (δ_jk − 1/K) M_k", f"{RELU} Eqs. 6, 21"),
    Field("weight_norms", "imbalanced", "norm of each row of the classifier", "",
          "|w_k|", f"{RELU} Prop. 1"),
    Field("mean_norms", "imbalanced", "norm of each class mean", "",
          "|h̄_k|", f"{RELU} Eq. 9"),
    Field("weight_cosines", "imbalanced", "cosines between rows of the classifier", "−1/(K−1)",
          "cos(w_k, w_l), k < l", f"{RELU} Prop. 1"),
    Field("mean_cosines", "imbalanced", "cosines between class means, uncentred", "0 for h ≥ 0",
          "cos(h̄_k, h̄_l), k < l", f"{RELU} Eq. 8"),
    Field("mean_orthogonality", "imbalanced", "mean absolute cosine between class means that are not 0, uncentred",
          "0 for h ≥ 0", "mean_{k≠l} |cos(h̄_k, h̄_l)|", f"{RELU} Eq. 8"),
    # diagnostics
    Field("num_samples", "diagnostics", "samples measured", "", "N", ""),
    Field("num_classes", "diagnostics", "classes", "", "K", ""),
    Field("present_classes", "diagnostics", "classes with at least one sample", "", "|{k: n_k > 0}|", ""),
    Field("dim", "diagnostics", "dimension of the features", "", "d", ""),
    Field("counts", "diagnostics", "samples in each class", "", "n_k", ""),
    Field("empty_classes", "diagnostics", "classes without a sample", "", "k with n_k = 0", ""),
    Field("means_rank", "diagnostics", "rank of the centred class means", "K−1",
          "rank H̃", f"{BCE} Eq. 36"),
    Field("means_smallest_singular_value", "diagnostics", "how far the class means are from losing a dimension", "",
          "σ_r(H̃), r = min(d, K−1)", f"{BCE} Eq. 36"),
    Field("scores_concentrated", "diagnostics", "both standard deviations of the scores are at most 0.5", "yes",
          "std s_pos ≤ 0.5 and std s_neg ≤ 0.5", f"{BCE} App. B.2"),
)  # fmt: skip

GROUPS = {
    "within": "Within-class collapse (NC1)",
    "frames": "Frames (NC2)",
    "duality": "Self-duality (NC3)",
    "decisions": "Decisions (NC4)",
    "similarity": "Similarity of features",
    "scores": "Decision scores",
    "imbalanced": "Imbalanced classes",
    "diagnostics": "Diagnostics",
}


def format_fields() -> str:
    """The table of fields in Markdown, group by group, as in docs/metrics.md.

    >>> format_fields().splitlines()[0]
    '### Within-class collapse (NC1)'
    """
    lines: list[str] = []
    for group, title in GROUPS.items():
        lines += [f"### {title}", "", "| field | meaning | formula | at full collapse | paper, equation |"]
        lines.append("| --- | --- | --- | --- | --- |")
        for row in FIELDS:
            if row.group == group:
                cells = (f"`{row.name}`", row.meaning, row.formula, row.at_collapse, row.source)
                lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


if __name__ == "__main__":
    print(format_fields())
