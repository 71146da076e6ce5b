# Overlay: The architecture of config/modern.py. Its optimizer is config/ablate/muon.py.
#   python train.py config/study/dense.py config/study/rope.py config/study/modern.py --out_dir=out/arm
position = "rope"
norm = "rmsnorm"
qk_norm = True
mlp_activation = "relu2"
logit_softcap = 15.0
