//! Programs and constants in a card's memory.

use std::sync::Arc;

use qaic_kmd::protocol::NncStatus;

use super::{AnnouncedConstants, Elf, ResourceTables};
use crate::firmware::constants::Constants;
use crate::resources::Amounts;
use crate::workload::Requirements;

impl ResourceTables {
    pub(in crate::firmware) fn load_elf(
        &mut self,
        owner: u32,
        data: Arc<[u8]>,
        requirements: Requirements,
    ) -> Result<u32, NncStatus> {
        let elf_id = self.new_id(self.elves.len(), NncStatus::IDS_EXHAUSTED)?;
        let resources =
            self.card.take(Amounts { ddr_bytes: requirements.image_bytes, ..Amounts::default() })?;
        self.elves.insert(elf_id, Elf { owner, data, requirements, resources });
        Ok(elf_id)
    }

    pub(in crate::firmware) fn unload_elf(&mut self, owner: u32, elf_id: u32) -> Result<(), NncStatus> {
        self.elf(owner, elf_id)?;
        if self.activations.values().any(|activation| activation.elf_id == elf_id) {
            return Err(NncStatus::NOT_PERMITTED);
        }
        let elf = self.elves.remove(&elf_id).ok_or(NncStatus::ID_NOT_FOUND)?;
        self.card.give_back(elf.resources);
        Ok(())
    }

    pub(super) fn elf(&self, owner: u32, elf_id: u32) -> Result<&Elf, NncStatus> {
        self.elves.get(&elf_id).filter(|elf| elf.owner == owner).ok_or(NncStatus::ID_NOT_FOUND)
    }

    pub(in crate::firmware) fn announce_constants(
        &mut self,
        owner: u32,
        static_bytes: u64,
        dynamic_bytes: u64,
    ) -> Result<u32, NncStatus> {
        let ddr_bytes = static_bytes.checked_add(dynamic_bytes).ok_or(NncStatus::PARAMETER)?;
        let constants_id = self.new_id(self.constants.len(), NncStatus::IDS_EXHAUSTED)?;
        let resources = self.card.take(Amounts { ddr_bytes, ..Amounts::default() })?;
        let constants = Arc::new(Constants::new(static_bytes, dynamic_bytes));
        self.constants.insert(constants_id, AnnouncedConstants { owner, constants, resources });
        Ok(constants_id)
    }

    pub(in crate::firmware) fn constants(
        &self,
        owner: u32,
        constants_id: u32,
    ) -> Result<&Arc<Constants>, NncStatus> {
        let announced = self.constants.get(&constants_id).filter(|announced| announced.owner == owner);
        announced.map(|announced| &announced.constants).ok_or(NncStatus::ID_NOT_FOUND)
    }

    pub(in crate::firmware) fn unload_constants(
        &mut self,
        owner: u32,
        constants_id: u32,
    ) -> Result<(), NncStatus> {
        self.constants(owner, constants_id)?;
        if self.activations.values().any(|activation| activation.constants_id == constants_id) {
            return Err(NncStatus::NOT_PERMITTED);
        }
        let announced = self.constants.remove(&constants_id).ok_or(NncStatus::ID_NOT_FOUND)?;
        self.card.give_back(announced.resources);
        Ok(())
    }
}
