//! Programs and constants in a card's memory.

use std::sync::Arc;

use super::{Announced, Books, Elf, IDS_EXHAUSTED, IN_USE, PARAMETER, UNKNOWN_ID};
use crate::emu::firmware::constants::Constants;
use crate::emu::ledger::Need;
use crate::emu::workload::Demand;

impl Books {
    pub(in crate::emu::firmware) fn load_elf(
        &mut self,
        owner: u32,
        data: Arc<[u8]>,
        demand: Demand,
    ) -> Result<u32, i32> {
        let elf_id = self.new_id(self.elves.len(), IDS_EXHAUSTED)?;
        let stock = self.card.take(Need { ddr_bytes: demand.image_bytes, ..Need::default() })?;
        self.elves.insert(elf_id, Elf { owner, data, demand, stock });
        Ok(elf_id)
    }

    pub(in crate::emu::firmware) fn unload_elf(&mut self, owner: u32, elf_id: u32) -> Result<(), i32> {
        self.elf(owner, elf_id)?;
        if self.activations.values().any(|activation| activation.elf_id == elf_id) {
            return Err(IN_USE);
        }
        let elf = self.elves.remove(&elf_id).ok_or(UNKNOWN_ID)?;
        self.card.give_back(elf.stock);
        Ok(())
    }

    pub(super) fn elf(&self, owner: u32, elf_id: u32) -> Result<&Elf, i32> {
        self.elves.get(&elf_id).filter(|elf| elf.owner == owner).ok_or(UNKNOWN_ID)
    }

    pub(in crate::emu::firmware) fn announce_constants(
        &mut self,
        owner: u32,
        static_bytes: u64,
        dynamic_bytes: u64,
    ) -> Result<u32, i32> {
        let ddr_bytes = static_bytes.checked_add(dynamic_bytes).ok_or(PARAMETER)?;
        let constants_id = self.new_id(self.constants.len(), IDS_EXHAUSTED)?;
        let stock = self.card.take(Need { ddr_bytes, ..Need::default() })?;
        let constants = Arc::new(Constants::new(static_bytes, dynamic_bytes));
        self.constants.insert(constants_id, Announced { owner, constants, stock });
        Ok(constants_id)
    }

    pub(in crate::emu::firmware) fn constants(
        &self,
        owner: u32,
        constants_id: u32,
    ) -> Result<&Arc<Constants>, i32> {
        let announced = self.constants.get(&constants_id).filter(|announced| announced.owner == owner);
        announced.map(|announced| &announced.constants).ok_or(UNKNOWN_ID)
    }

    pub(in crate::emu::firmware) fn unload_constants(
        &mut self,
        owner: u32,
        constants_id: u32,
    ) -> Result<(), i32> {
        self.constants(owner, constants_id)?;
        if self.activations.values().any(|activation| activation.constants_id == constants_id) {
            return Err(IN_USE);
        }
        let announced = self.constants.remove(&constants_id).ok_or(UNKNOWN_ID)?;
        self.card.give_back(announced.stock);
        Ok(())
    }
}
