"""Circuits of spflow and cirkit, against their own values (single precision: 1e-4 nats)."""

import time

import numpy as np
import pytest

import certimap as cm

torch = pytest.importorskip("torch")


def rows_of(model, n: int, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.integers(k, size=n) if k else rng.normal(size=n) for k in model.domain.n_states], axis=1)


class TestSpflow:
    @pytest.fixture(autouse=True)
    def _needs(self):
        pytest.importorskip("spflow")
        torch.manual_seed(0)
        np.random.seed(0)  # the random factorisation of RAT-SPNs draws from it

    def check(self, theirs, n: int = 40):
        ours = cm.from_object(theirs)
        rows = rows_of(ours, n, 1)
        with torch.no_grad():
            expected = theirs.log_likelihood(torch.tensor(rows, dtype=torch.float32)).reshape(-1).numpy()
        assert cm.log_likelihood(ours, rows) == pytest.approx(expected, abs=1e-4)
        return ours

    def leaves(self, n, **options):
        from spflow.modules.leaves import Categorical

        return Categorical(scope=list(range(n)), K=3, **options)

    def test_sums_and_products(self):
        from spflow.modules.leaves import Bernoulli, Normal
        from spflow.modules.products import Product
        from spflow.modules.sums import Sum

        parts = [
            self.leaves(2, out_channels=2),
            Bernoulli(scope=[2], out_channels=2),
            Normal(scope=3, out_channels=2),
        ]
        ours = self.check(Sum(inputs=Product(parts), out_channels=1))
        assert ours.domain.n_states.tolist() == [3, 3, 2, 0]

    def test_rat_spns(self):
        from spflow.zoo.rat import RatSPN

        leaves = [self.leaves(9, out_channels=3, num_repetitions=2)]
        options = {"n_root_nodes": 3, "n_region_nodes": 3, "num_repetitions": 2, "depth": 2}
        self.check(RatSPN(leaf_modules=leaves, outer_product=True, split_mode=None, **options))

    @pytest.mark.parametrize("how", ["consecutive", "interleaved", "by_index"])
    @pytest.mark.parametrize("outer", [True, False])
    def test_products_of_a_split_input(self, outer, how):
        from spflow.modules.ops.split import SplitMode
        from spflow.modules.products import ElementwiseProduct, OuterProduct, Product
        from spflow.modules.sums import ElementwiseSum, Sum

        mode = SplitMode.by_index([[0, 3], [1, 2]]) if how == "by_index" else getattr(SplitMode, how)(2)
        kind = OuterProduct if outer else ElementwiseProduct
        middle = [kind(self.leaves(4, out_channels=2), split_mode=mode) for _ in range(2)]
        mixed = ElementwiseSum(inputs=middle, out_channels=2)
        self.check(Sum(inputs=Product(mixed), out_channels=1))

    @pytest.mark.parametrize("layer", ["einsum", "linsum"])
    def test_einets(self, layer):
        from spflow.zoo.einet import Einet

        theirs = Einet(
            leaf_modules=[self.leaves(8, out_channels=4, num_repetitions=2)],
            num_classes=1,
            num_sums=4,
            num_leaves=4,
            depth=2,
            num_repetitions=2,
            layer_type=layer,
        )
        self.check(theirs)

    def test_learned_ones(self):
        from spflow.learn.learn_spn import learn_spn
        from spflow.modules.leaves import Normal

        rng = np.random.default_rng(0)
        hidden = rng.integers(3, size=(600, 1))
        data = torch.tensor(hidden + rng.normal(size=(600, 6)), dtype=torch.float32)
        self.check(learn_spn(data, Normal(scope=list(range(6))), min_instances_slice=100))

    def test_binomials_of_several_sizes(self):
        from spflow.modules.leaves import Binomial
        from spflow.modules.products import Product
        from spflow.modules.sums import Sum

        parts = [Binomial(scope=[v], out_channels=2, total_count=torch.tensor(2.0 + v)) for v in range(2)]
        ours = self.check(Sum(inputs=Product(parts), out_channels=1))
        assert ours.domain.n_states.tolist() == [3, 4]

    def test_leaves_of_several_sizes_are_padded(self):
        from spflow.modules.leaves import Categorical
        from spflow.modules.products import Product
        from spflow.modules.sums import Sum

        parts = [Product([Categorical(scope=[0], K=k), Categorical(scope=[1], K=2)]) for k in (2, 3)]
        theirs = Sum(inputs=parts, out_channels=1)
        ours = cm.from_object(theirs)
        assert ours.domain.n_states.tolist() == [3, 2]
        rows = np.array([[0, 1], [1, 0]])
        with torch.no_grad():
            expected = theirs.log_likelihood(torch.tensor(rows, dtype=torch.float32)).reshape(-1).numpy()
        assert cm.log_likelihood(ours, rows) == pytest.approx(expected, abs=1e-4)
        rest = cm.marginals(ours, "0")["0"]
        assert rest[2] == pytest.approx(
            float(theirs.weights[0, 1, 0, 0] * parts[1].inputs.inputs[0].probs[0, 0, 0, 2])
        )

    def test_fifty_thousand_edges_take_seconds(self):
        from spflow.zoo.einet import Einet

        theirs = Einet(
            leaf_modules=[self.leaves(64, out_channels=10, num_repetitions=2)],
            num_classes=1,
            num_sums=10,
            num_leaves=10,
            depth=5,
            num_repetitions=2,
            layer_type="einsum",
        )
        start = time.process_time()
        ours = cm.from_object(theirs)
        seconds = time.process_time() - start
        assert ours.n_edges > 50_000
        assert seconds < 5.0

    def test_what_cannot_be_read_is_named(self):
        from spflow.modules.leaves import Poisson
        from spflow.modules.products import Product

        with pytest.raises(cm.ModelError, match=r"spflow\.Poisson"):
            cm.from_object(Product([self.leaves(2), Poisson(scope=[2])]))
        with pytest.raises(cm.ModelError, match="6 outputs"):
            cm.from_object(self.leaves(2, out_channels=3))

    def test_a_layer_that_computes_otherwise_is_noticed(self, monkeypatch):
        from spflow.modules.products import Product

        theirs = Product([self.leaves(3)])
        monkeypatch.setattr(
            Product, "log_likelihood", lambda self, data, cache=None: torch.full((len(data), 1), -1.0)
        )
        with pytest.raises(cm.ModelError, match="not understood"):
            cm.from_object(theirs)


class TestCirkit:
    @pytest.fixture(autouse=True)
    def _needs(self):
        pytest.importorskip("cirkit.backend.torch")
        torch.manual_seed(0)

    def compiled(self, layer="cp", fold=True, optimize=False, softmax=True, n=6, semiring="lse-sum"):
        from cirkit.pipeline import PipelineContext
        from cirkit.templates import data_modalities, utils

        weights = utils.Parameterization(activation="softmax" if softmax else "none", initialization="normal")
        symbolic = data_modalities.tabular_data(
            region_graph="random-binary-tree",
            num_features=n,
            input_layers={"name": "categorical", "args": {"num_categories": 3}},
            num_input_units=3,
            sum_product_layer=layer,
            num_sum_units=3,
            sum_weight_param=weights,
        )
        context = PipelineContext(backend="torch", semiring=semiring, fold=fold, optimize=optimize)
        return context.compile(symbolic)

    @pytest.mark.parametrize("fold", [True, False])
    @pytest.mark.parametrize("optimize", [True, False])
    @pytest.mark.parametrize("layer", ["cp", "cp-t", "tucker"])
    def test_values(self, layer, fold, optimize):
        theirs = self.compiled(layer, fold, optimize)
        ours = cm.from_object(theirs)
        rows = rows_of(ours, 40, 1)
        with torch.no_grad():
            expected = theirs(torch.tensor(rows)).reshape(-1).numpy()
        total = cm.log_evidence(ours)
        assert cm.log_likelihood(ours, rows) + total == pytest.approx(expected, abs=1e-4)

    @pytest.mark.parametrize("semiring", ["sum-product", "complex-lse-sum"])
    def test_other_semirings_have_the_values_of_logs(self, semiring):
        """Values of 80 variables lie below single precision."""
        torch.manual_seed(1)
        logs = self.compiled(n=80)
        torch.manual_seed(1)
        ours = cm.from_object(self.compiled(n=80, semiring=semiring))
        rows = rows_of(ours, 10, 1)
        with torch.no_grad():
            expected = logs(torch.tensor(rows)).reshape(-1).numpy()
        assert cm.log_likelihood(ours, rows) + cm.log_evidence(ours) == pytest.approx(expected, abs=1e-3)

    def test_what_cannot_be_read_is_named(self):
        theirs = self.compiled(softmax=False)
        with pytest.raises(cm.ModelError, match="negative weight"):
            cm.from_object(theirs)
