# Overlay for any model, not in the papers: Muon for the linear maps of the blocks, AdamW for the rest.
#   python train.py config/cofrgenet_f.py config/ablate/muon.py --out_dir=out/f_muon
optimizer = "muon"
