"""A graph network that updates its parameters by hand, with operators few scripts use."""

import torch
from torch.nn import functional

NODES, EDGES, WIDTH = 50, 300, 16
torch.manual_seed(7)
places = torch.randperm(NODES * NODES)[:EDGES]
edges = torch.stack([places // NODES, places % NODES])
adjacency = torch.sparse_coo_tensor(edges, torch.ones(EDGES), (NODES, NODES)).coalesce().cuda()
rows = torch.eye(NODES).to_sparse_csr().cuda()
table = torch.nn.Embedding(NODES, WIDTH, sparse=True).cuda()
layer = torch.nn.Linear(WIDTH, WIDTH).cuda()
sparse_optimizer = torch.optim.SparseAdam(table.parameters())
nodes = torch.arange(NODES).cuda()
for step in range(5):
    layer.zero_grad()
    features = rows @ torch.sparse.mm(adjacency, table(nodes))
    scores = layer(features)
    chosen = scores[nodes >= 40]
    assert chosen.shape == (10, WIDTH)
    assert torch.unique_consecutive(nodes // 10).tolist() == [0, 1, 2, 3, 4]
    likely = functional.log_softmax(scores, -1).unsqueeze(1)
    length = torch.tensor([NODES])
    spelled = functional.ctc_loss(likely, nodes[1:5].unsqueeze(0), length, torch.tensor([4]))
    margin = functional.multi_margin_loss(scores, torch.zeros_like(nodes))
    highest, _ = scores.cummax(0)
    (chosen.sum() + spelled + margin + highest.sum()).backward()
    for parameter in layer.parameters():
        parameter.data.add_(parameter.grad, alpha=-0.1)
    print("step", step)
    if step == 4:
        sparse_optimizer.step()
